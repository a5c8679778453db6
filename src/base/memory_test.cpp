#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace tercet {
namespace {

TEST(AvailableMemory, IsSomeOfTheMachines) {
  EXPECT_GT(available_memory(), int64_t{16} << 20);  // else this test would not run
  EXPECT_LE(available_memory(), int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace tercet
