#include <mpi.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace starring {
namespace {

// Runs alone (mpi_test) and as one of several ranks (mpirun_test, which sets EXPECTED_RANKS).
TEST(Mpi, InitReduceFinalize) {
  int granted = 0;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted), MPI_SUCCESS);
  EXPECT_EQ(granted, MPI_THREAD_MULTIPLE);
  const char* expected_ranks = std::getenv("EXPECTED_RANKS");
  float ranks = 1;
  ASSERT_EQ(MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), MPI_SUCCESS);
  EXPECT_EQ(ranks, expected_ranks == nullptr ? 1 : std::atoi(expected_ranks));
  EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS);
}

}  // namespace
}  // namespace starring
