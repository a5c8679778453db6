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
         shared == other.shared && together == other.together && mark == other.mark && params == other.params;
}

Launcher::~Launcher() {
  for (const Known& known : known_) {
    if (known.graph != nullptr) cudaGraphExecDestroy(known.graph);
  }
  for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
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
  ++kernels_;
}

void Launcher::mark() {
  if (collected_) collected_();
  if (set_ == marks_.size()) check(cudaEventCreate(&marks_.emplace_back().event));
  Mark& mark = marks_[set_++];
  mark.kernels = std::exchange(kernels_, 0);
  Launch launch;
  launch.mark = mark.event;
  queued_.push_back(launch);
}

std::vector<Lap> Launcher::laps() {
  std::vector<Lap> laps;
  for (size_t i = 1; i < set_; ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, marks_[i - 1].event, marks_[i].event));
    laps.push_back({milliseconds * 1e-3, marks_[i].kernels});
  }
  set_ = 0;
  return laps;
}

void Launcher::run_one_by_one(std::vector<Launch>& launches, bool captured) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  bool after_mark = false;
  for (Launch& launch : launches) {
    if (launch.mark != nullptr) {
      check(cudaEventRecordWithFlags(launch.mark, stream_,
                                     captured ? cudaEventRecordExternal : cudaEventRecordDefault));
      after_mark = true;
      continue;
    }
    void* arguments[] = {launch.params.data()};
    cudaLaunchConfig_t config{};
    config.gridDim = launch.grid;
    config.blockDim = launch.block;
    config.dynamicSmemBytes = launch.shared;
    config.stream = stream_;
    const bool overlaps = overlap_ && !std::exchange(after_mark, false);
    config.attrs = launch.together != 0 ? &together : &overlap;
    config.numAttrs = launch.together != 0 || overlaps ? 1 : 0;
    check(cudaLaunchKernelExC(&config, launch.kernel, arguments));
  }
}

cudaGraphExec_t Launcher::make_graph(std::vector<Launch>& launches) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  run_one_by_one(launches, true);
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
    run_one_by_one(queued_, false);
    queued_.clear();
    return;
  }
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [this](const Known& known) { return known.launches == queued_; });
  if (found == known_.end()) {
    run_one_by_one(queued_, false);
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
