#include "core/device/marks.hpp"

namespace tessera {

struct TimeMarks::State {};

TimeMarks::TimeMarks() = default;
TimeMarks::~TimeMarks() = default;
void TimeMarks::start(Stream&) {}
int TimeMarks::add(Stream&) { return none; }
std::optional<std::int64_t> TimeMarks::time(int) const { return std::nullopt; }

}  // namespace tessera
