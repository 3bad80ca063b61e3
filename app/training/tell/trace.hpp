#pragma once
#include <fstream>
#include <nlohmann/json_fwd.hpp>
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

/// debug.trace: a JSON line for each step with 64-bit digests, by canonical name, of main gradients, masters and stored
/// weights. It has the digest of the logits and with the step's collectives. Hashes on the device, and does not change
/// the order of collectives. A step's row is written when its weights have been gathered: in the next step's forward,
/// or at finish().
class Trace final : public StepObserver {
 public:
  /// A recording mesh must fill `records`. Rank 0 writes the file `path`, which the first row replaces; a resumed
  /// run keeps what was there as `path`.1, `path`.2 and so on. Throws Error{environment} if it cannot.
  Trace(const std::string& path, Device& device, const StepPlan& plan, Engine& engine, Control& control,
        std::vector<Record>& records);

  void begun() override { drop_exchanges(); }
  void reduced(Stream& stream, const Reduced& gradients) override;
  void stepped(Stream& stream) override;
  /// Adds the last step's scalars from its report, and the chain of the steps before it. Local.
  void report(std::int64_t step, const StepReport& report, double loss, std::uint64_t chain);
  /// Writes the last row, after hashing all stored weights. Collective over the world.
  void finish(Stream& stream);

 private:
  struct Row {
    std::int64_t step = 0;
    double loss = 0;
    std::uint64_t logits = 0, chain = 0;
    float norm = 0;
    std::vector<std::int64_t> routing;  ///< StepReport::routing
    std::vector<Record> collectives;
    QuantizeLaunches quantize;  ///< launches since the reduction of the step before
  };
  std::uint64_t* sum(std::int64_t which, int name) const;
  void consumed(Stream& stream, const Plane& plane);
  void hash_plane(Stream& stream, const Plane& plane);
  void sort_records(Row& earlier, Row& current);
  void drop_exchanges();
  void leave_to_owners(std::vector<std::uint64_t>& sums) const;
  void write(Stream& stream);
  void open();
  void write_row(const std::vector<std::uint64_t>& sums, Problems& problems);
  /// Digests of the choices of experts by layer, as JSON, where the routing is recorded.
  nlohmann::ordered_json choices() const;

  std::string path_;
  Device& device_;
  const StepPlan& plan_;
  Engine& engine_;
  Control& control_;
  std::vector<Record>& records_;
  std::vector<std::string> names_;  ///< canonical names, each once
  std::vector<int> name_of_;        ///< by ParamId
  std::set<std::pair<int, PlaneKind>> hashed_;  ///< arrays in the row already; later gathers of a step give the same
  std::vector<ProcessGroup> shared_by_;  ///< by name
  std::vector<std::set<PlaneKind>> stored_;  ///< by name: the weight's stored arrays
  Tensor sums_;                     ///< u64 [digests_of_tensor, names]
  std::ofstream file_;
  Row row_;
  bool open_ = false;  ///< whether row_ is of a step and still to be written
  Overlapped overlapped_;  ///< until the row before
  QuantizeLaunches launched_;  ///< launches before the current row
};

}  // namespace tessera
