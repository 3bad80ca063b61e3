#include "app/training/start/library_plans.hpp"

#include <fmt/format.h>

#include "app/training/start/preparation.hpp"
#include "io/checkpoint/reader.hpp"
#include "kernels/base/gpu_libraries.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/choice.hpp"

namespace tessera {
namespace {

std::string this_place() {
  std::string text;
  for (const LibraryVersion& library : gpu_libraries()) text += library.name + " " + library.version + ", ";
  const Gpu gpu = Runtime::gpu();
  return text + gpu.name + " " + gpu.capability;
}

}  // namespace

AgreedPlans use_library_plans(Device& device, const RunPlan& plan, const std::vector<std::filesystem::path>& beginnings,
                              Control& control) {
  std::string stored;
  Problems problems;
  if (control.rank() == 0 && !plan.library_work.empty() && !beginnings.empty())
    attempt(problems, [&] { stored = Checkpoint(beginnings.front()).library_plans(); });
  control.agree(problems);
  Stream& stream = device.compute();
  const AgreedPlans agreed =
      agree_on_plans(control, plan.library_work, this_place(), stored,
                     [&](const LibraryChoices::Words& work, const LibraryChoices::Words& preferred) {
                       return gemm::choose(stream, work, preferred);
                     });
  stream.library<LibraryChoices>() = agreed.plans.choices;
  if (control.rank() == 0 && !agreed.outdated.empty())
    fmt::print(stderr,
               "library plans are chosen anew, and bits may differ from the saved run's: those of {} were made for "
               "{}\n",
               beginnings.front().string(), agreed.outdated);
  return agreed;
}

}  // namespace tessera
