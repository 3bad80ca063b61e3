#pragma once
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/comm/control.hpp"
#include "core/step/debug_memory.hpp"
#include "core/step/engine.hpp"
#include "kernels/quantize/quantize.hpp"

namespace tessera {

/// debug.trace: a JSON line per step with 64-bit digests, by canonical name, of main gradients, masters and stored
/// weights, the digest of the logits, and the step's collectives. Hashes on the device where the data is; settles
/// nothing and moves no collective. A step's row is written once its weights have been consumed: in the next step's
/// forward, or at finish().
class Trace final : public StepObserver {
 public:
  /// `records` is filled by a recording mesh. Rank 0 writes `path`, anew once there is a row;
  /// Error{environment} if it cannot.
  Trace(const std::string& path, Device& device, const StepPlan& plan, Engine& engine, Control& control,
        std::vector<Record>& records);

  void begun() override { drop_exchanges(); }
  void reduced(Stream& stream, const Reduced& gradients) override;
  void stepped(Stream& stream) override;
  /// The last step's scalars, from its report. Local.
  void report(std::int64_t step, const StepReport& report, double loss);
  /// Writes the last row, after a look at all weights. Collective.
  void finish(Stream& stream);

 private:
  struct Row {
    std::int64_t step = 0;
    double loss = 0;
    std::uint64_t logits = 0;
    float norm = 0;
    std::vector<Record> collectives;
    QuantizeLaunches quantize;  ///< since the gradients of the step before were reduced
  };
  std::uint64_t* sum(std::int64_t which, int name) const;
  void consumed(Stream& stream, const Plane& plane);
  void hash_plane(Stream& stream, const Plane& plane);
  void hash_pieces(Stream& stream, Traced which, BucketId bucket, const Tensor& shard);
  void sort_records(Row& earlier, Row& current);
  void drop_exchanges();
  void leave_to_owners(std::vector<std::uint64_t>& sums) const;
  void write(Stream& stream);
  void write_row(const std::vector<std::uint64_t>& sums, Problems& problems);

  std::string path_;
  Device& device_;
  const StepPlan& plan_;
  Engine& engine_;
  Control& control_;
  std::vector<Record>& records_;
  std::vector<std::string> names_;  ///< canonical, each once
  std::vector<int> name_of_;        ///< by ParamId
  std::set<std::pair<int, PlaneKind>> hashed_;  ///< arrays that the row has: gathered again they are the same
  std::vector<ProcessGroup> shared_by_;  ///< by name
  std::vector<std::set<PlaneKind>> stored_;  ///< by name: what is stored of the weight
  Tensor sums_;                     ///< u64 [digests_of_tensor, names]
  std::ofstream file_;
  Row row_;
  bool open_ = false;  ///< a step has begun whose row is still to write
  std::int64_t gathers_ = 0, reductions_ = 0;
  QuantizeLaunches launched_;  ///< until the row under way
};

}  // namespace tessera
