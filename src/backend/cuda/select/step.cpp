#include "backend/cuda/select/step.h"

namespace tercet::cuda {

Choice<StepForm> choose_step(const DeviceTraits& device, int64_t rows) {
  if (device.plain) return {StepForm::kernels, "only the plain kernels are to run"};
  if (!device.wgmma())
    return {StepForm::kernels, "the program is written for this generation's shared memory"};
  if (rows > kProgramRows) return {StepForm::kernels, "rows enough that kernels of their own pay"};
  return {StepForm::program, "few rows: a kernel an operation would wait more than work"};
}

std::string_view name_of(StepForm form) {
  return form == StepForm::program ? "program, one kernel of phases" : "kernels, one after another";
}

}  // namespace tercet::cuda
