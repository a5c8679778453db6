// The results of `tercet bench` as tables and for machines.
#pragma once

#include <span>
#include <string>

#include "apps/bench_measure.h"

namespace tercet {

/// What all results of one run share.
struct BenchSetting {
  std::string model;
  int64_t model_bytes = 0;  // of the weights, in memory
  int64_t parameters = 0;
  int64_t layers = 0;
  std::string processor;
  std::string kernels;  // the instruction set that is used, or "reference"
  int threads = 0;
  int chunk = 0;
  double bandwidth = 0;  // bytes a second
  double multiply = 0;   // products a second
};

/// Tokens a second if nothing but the slower of two things took time: reading the bytes, or multiplying.
double floor_rate(const BenchSetting& setting, const BenchResult& result);

/// A line about the machine, then llama-bench's table with the floor beside it.
std::string markdown(const BenchSetting& setting, std::span<const BenchResult> results);
/// For each test: the parts of the model with their time.
std::string profile_tables(const BenchSetting& setting, std::span<const BenchResult> results);
/// llama-bench's names for what both have. JSON: an array of objects, with samples and, where it was
/// measured, the profile.
std::string csv(const BenchSetting& setting, std::span<const BenchResult> results);
std::string json(const BenchSetting& setting, std::span<const BenchResult> results);

}  // namespace tercet
