// What a monitor reads, as Prometheus' text.
#pragma once

#include <map>
#include <string>

#include "serve/engine_driver.h"

namespace tercet {

struct HttpCounts {
  std::map<int, uint64_t> by_status;
  uint64_t left = 0;  // clients that left before the end of their answer
  size_t connections = 0;
};

/// Under the names of vLLM and of llama.cpp, where they have one for it.
std::string metrics_text(const EngineStats& engine, const DriverMetrics& driver, const HttpCounts& http,
                         const std::string& model);

}  // namespace tercet
