#include <mpi.h>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(Mpi, SingletonInitReduceFinalize) {
  int granted = 0;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), MPI_SUCCESS);
  EXPECT_EQ(granted, MPI_THREAD_MULTIPLE);
  float value = 3;
  ASSERT_EQ(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
            MPI_SUCCESS);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS);
}

}  // namespace
}  // namespace starring
