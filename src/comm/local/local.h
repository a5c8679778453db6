// Ranks as threads of one process, exchanging through its memory.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace tercet {

/// The ends of one group, for one thread each. They share state and may outlive each other.
std::vector<std::unique_ptr<Communicator>> make_local_group(int size);

}  // namespace tercet
