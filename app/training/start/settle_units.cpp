#include "app/training/start/settle_units.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/files/json_text.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {
namespace {

using Json = nlohmann::json;

std::string to_text(const CheckedKinds& kinds) {
  Json list = Json::array();
  for (const auto& [kind, checked] : kinds)
    list.push_back({static_cast<int>(kind.form), static_cast<int>(kind.a), static_cast<int>(kind.b),
                    static_cast<int>(kind.rows), checked.apart, checked.fault});
  return json_text(list);
}

/// Adds the findings of a rank: of each kind the worst.
void add(CheckedKinds& all, const std::string& text) {
  for (const Json& one : Json::parse(text)) {
    const gemm::Kind kind{gemm::Form(one[0].get<int>()), FormatId(one[1].get<int>()), FormatId(one[2].get<int>()),
                          gemm::Rows(one[3].get<int>())};
    const double apart = one[4].is_number() ? one[4].get<double>() : std::numeric_limits<double>::quiet_NaN();
    CheckedKind& checked = all[kind];
    if (!(apart <= checked.apart)) checked.apart = apart;
    if (checked.fault.empty()) checked.fault = one[5];
  }
}

/// Says what was found, on stderr, since the answers of eval stand alone; rank 0.
void tell(const CheckedKinds& kinds) {
  std::vector<std::string> right, wrong;
  for (const auto& [kind, checked] : kinds)
    if (checked.fault.empty()) right.push_back(text_of(kind));
    else wrong.push_back(fmt::format("{} ({})", text_of(kind), checked.fault));
  if (!right.empty())
    fmt::print(stderr, "units:    checked, and right, for products of codes: {}\n", fmt::join(right, ", "));
  if (!wrong.empty())
    fmt::print(stderr,
               "WARNING: products that this machine's units compute wrongly are decoded to bf16 first, slower and "
               "right: {}; run.json records it\n",
               fmt::join(wrong, ", "));
}

}  // namespace

void settle_units(Prepared& run, const Mpi& mpi, Control& control) {
  const auto claimed = [](const auto& entry) {
    return entry.second == gemm::Route::native &&
           gemm::standing_of(gemm::kind_of(entry.first)) == gemm::Standing::claimed;
  };
  if (control.max(std::ranges::any_of(run.plan->routes.of, claimed) ? 1 : 0) == 0) return;
  CheckedKinds mine;
  Problems problems;
  attempt(problems, [&] {
    Device device;
    mine = check_units(device, run.plan->routes);
  });
  control.agree(problems);
  for (const std::string& theirs : control.gather(to_text(mine))) add(run.units, theirs);
  if (mpi.rank() == 0) tell(run.units);
  bool wrong = false;
  for (const auto& [kind, checked] : run.units)
    if (!checked.fault.empty()) {
      gemm::give_up(kind);
      wrong = true;
    }
  if (wrong) plan_segment(run, run.segment, mpi, control);
}

}  // namespace tessera
