#include "backend/cuda/runtime/launcher.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/runtime/status.h"

namespace tercet::cuda {
namespace {

constexpr size_t kKnown = 24;       // lists that are remembered
constexpr size_t kFewLaunches = 4;  // below, a graph saves nothing
constexpr size_t kOwnShared = 48 * 1024;

bool same(dim3 a, dim3 b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

}  // namespace

bool Launcher::Launch::operator==(const Launch& other) const {
  return kernel == other.kernel && same(grid, other.grid) && same(block, other.block) &&
         shared == other.shared && together == other.together && params == other.params;
}

Launcher::~Launcher() {
  for (const Known& known : known_) {
    if (known.graph != nullptr) cudaGraphExecDestroy(known.graph);
  }
}

void Launcher::add(const Launch& launch) {
  if (launch.shared > kOwnShared) {
    uint32_t& limit = shared_[launch.kernel];
    if (launch.shared > limit) {
      limit = launch.shared;
      check(cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(limit)));
    }
  }
  queued_.push_back(launch);
}

void Launcher::run_one_by_one(std::vector<Launch>& launches) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  for (Launch& launch : launches) {
    void* arguments[] = {launch.params.data()};
    cudaLaunchConfig_t config{};
    config.gridDim = launch.grid;
    config.blockDim = launch.block;
    config.dynamicSmemBytes = launch.shared;
    config.stream = stream_;
    config.attrs = launch.together != 0 ? &together : &overlap;
    config.numAttrs = launch.together != 0 || overlap_ ? 1 : 0;
    check(cudaLaunchKernelExC(&config, launch.kernel, arguments));
  }
}

cudaGraphExec_t Launcher::make_graph(std::vector<Launch>& launches) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  run_one_by_one(launches);
  check(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  check(cudaGraphDestroy(graph));
  return exec;
}

void Launcher::flush() {
  if (collected_) collected_();
  if (queued_.empty()) return;
  if (before_) before_();
  if (!graphs_on_ || queued_.size() < kFewLaunches) {
    run_one_by_one(queued_);
    queued_.clear();
    return;
  }
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [this](const Known& known) { return known.launches == queued_; });
  if (found == known_.end()) {
    run_one_by_one(queued_);
    known_.push_front({std::exchange(queued_, {}), nullptr});
    if (known_.size() > kKnown) {
      if (known_.back().graph != nullptr) check(cudaGraphExecDestroy(known_.back().graph));
      known_.pop_back();
    }
    return;
  }
  if (found->graph == nullptr) found->graph = make_graph(found->launches);
  check(cudaGraphLaunch(found->graph, stream_));
  std::rotate(known_.begin(), found, found + 1);
  queued_.clear();
}

void Launcher::wait() {
  flush();
  check(cudaStreamSynchronize(stream_));
}

}  // namespace tercet::cuda
