// What the machine can do at best, measured: the floor that a model's speed is compared with.
#pragma once

#include <string>

#include "ops/ops.h"

namespace tercet {

/// The processor's name as the operating system has it.
std::string processor_name();

/// Bytes a second that `threads` threads read from memory: the best of several passes over a buffer four
/// times as large as the last cache, 1 GiB at least, 4 GiB at most, freed afterwards. About a second.
double read_bandwidth(int threads);

/// Products a second of 512 rows with 4-bit weights that stay in the caches, or of 4,096 with more weights on
/// a device that so few do not fill: the best of several runs of Ops::linear in a third of a second. Rounding
/// of the rows is inside.
double multiply_rate(Ops& ops);

}  // namespace tercet
