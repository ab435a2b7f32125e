#include <omp.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Openmp, DirectivesAreCompiledAndThreadsStart) {
  int threads = 0;
#pragma omp parallel num_threads(3) reduction(+ : threads)
  threads += 1;
  EXPECT_EQ(threads, 3);
}

}  // namespace
}  // namespace starring
