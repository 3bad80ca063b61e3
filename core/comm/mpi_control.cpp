#include "core/comm/mpi_control.hpp"

#include <fmt/format.h>

#include <climits>
#include <numeric>
#include <optional>

#include "core/comm/mpi_sentinel.hpp"

namespace tessera {
namespace {

class MpiControl final : public Control {
 public:
  MpiControl(MpiWatch& watch, std::chrono::seconds timeout)
      : watch_(watch), comm_(watch.duplicate()), at_{"control", 0, ""} {
    watch_.wait_at_most(timeout);
  }
  ~MpiControl() override { MPI_Comm_free(&comm_); }
  MpiControl(const MpiControl&) = delete;
  MpiControl& operator=(const MpiControl&) = delete;

  int rank() const override { return watch_.rank(); }
  int size() const override { return watch_.size(); }

  void wait_at_most(std::chrono::seconds timeout) override { watch_.wait_at_most(timeout); }

  std::int64_t max(std::int64_t value) override {
    run("control max",
        [&](MPI_Request* r) { return MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MAX, comm_, r); });
    return value;
  }

  std::vector<std::string> gather(const std::string& mine) override {
    std::vector<int> counts(ranks()), begins(ranks());
    const int length = checked(mine.size(), ranks());
    run("control gather",
        [&](MPI_Request* r) { return MPI_Iallgather(&length, 1, MPI_INT, counts.data(), 1, MPI_INT, comm_, r); });
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    std::string all(static_cast<std::size_t>(begins.back() + counts.back()), '\0');
    run("control gather", [&](MPI_Request* r) {
      return MPI_Iallgatherv(mine.data(), length, MPI_BYTE, all.data(), counts.data(), begins.data(), MPI_BYTE, comm_,
                             r);
    });
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < ranks(); ++i)
      texts.push_back(all.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(counts[i])));
    return texts;
  }

  std::string broadcast(const std::string& from_root) override {
    int length = rank() == 0 ? checked(from_root.size(), 1) : 0;
    run("control broadcast", [&](MPI_Request* r) { return MPI_Ibcast(&length, 1, MPI_INT, 0, comm_, r); });
    std::string text = rank() == 0 ? from_root : std::string(static_cast<std::size_t>(length), '\0');
    run("control broadcast", [&](MPI_Request* r) { return MPI_Ibcast(text.data(), length, MPI_BYTE, 0, comm_, r); });
    return text;
  }

  double sum_in_order(double value) override {
    std::vector<double> all(ranks());
    run("control sum_in_order",
        [&](MPI_Request* r) { return MPI_Iallgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, comm_, r); });
    return std::accumulate(all.begin() + 1, all.end(), all.front());
  }

  void sum(std::uint64_t* values, int n) override {
    run("control sum",
        [&](MPI_Request* r) { return MPI_Iallreduce(MPI_IN_PLACE, values, n, MPI_UINT64_T, MPI_SUM, comm_, r); });
  }

  void leave(const std::string& why) override { watch_.leave(why); }
  const void* native() const override { return &comm_; }

 protected:
  void begin_library_call(const char* what) override {
    if (size() == 1) return;
    if (!sentinel_) sentinel_.emplace(watch_);
    at_ = {what, at_.sequence + 1, about_.c_str()};
    sentinel_->begin(at_, watch_.timeout());
  }
  void end_library_call() override {
    if (sentinel_) sentinel_->end();
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(watch_.size()); }

  /// The length as an int. Aborts if it is too large, since a throw on one rank would leave the others waiting; by
  /// contract Control carries small data only.
  int checked(std::size_t length, std::size_t senders) const {
    if (length > static_cast<std::size_t>(INT_MAX) / senders)
      watch_.abort(Exit::internal, "Control carries small data");
    return static_cast<int>(length);
  }

  template <class F>
  void run(const char* call, const F& start) {
    at_ = {call, at_.sequence + 1, about_.c_str()};
    MPI_Request request = MPI_REQUEST_NULL;
    watch_.check(start(&request), at_);
    watch_.wait({&request, 1}, at_, MpiWatch::Manner::patient);
  }

  MpiWatch& watch_;
  MPI_Comm comm_;
  Waiting at_;
  std::optional<MpiSentinel> sentinel_;  ///< made at the first library call
};

}  // namespace

std::unique_ptr<Control> mpi_control(MpiWatch& watch, std::chrono::seconds timeout) {
  return std::make_unique<MpiControl>(watch, timeout);
}

}  // namespace tessera
