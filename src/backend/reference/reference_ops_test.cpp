#include "backend/reference/reference_ops.h"

#include <gtest/gtest.h>
