// The numbers of OpenMpiAbi are those of the header with which this test is compiled. Jobs under MPICH are the test of
// MpichAbi (tests/bench/systems/site_mpi_test.py).
#include "common/transport/mpi/mpi_abi.h"

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "gtest/gtest.h"

namespace starring {
namespace {

TEST(MpiAbiTest, OpenMpiHasTheNumbersOfItsHeader) {
  using Abi = OpenMpiAbi;
  static_assert(sizeof(Abi::Status) == sizeof(MPI_Status) && alignof(Abi::Status) == alignof(MPI_Status));
  static_assert(offsetof(Abi::Status, source) == offsetof(MPI_Status, MPI_SOURCE));
  static_assert(offsetof(Abi::Status, tag) == offsetof(MPI_Status, MPI_TAG));
  static_assert(offsetof(Abi::Status, error) == offsetof(MPI_Status, MPI_ERROR));
  static_assert(sizeof(Abi::Request) == sizeof(MPI_Request) && std::is_pointer_v<MPI_Request>);
  EXPECT_EQ(Abi::kAnySource, MPI_ANY_SOURCE);
  EXPECT_EQ(Abi::kTagUb, MPI_TAG_UB);
  EXPECT_EQ(Abi::kErrorName, MPI_ERR_NAME);
  EXPECT_EQ(Abi::kPortNameBytes, MPI_MAX_PORT_NAME);
  EXPECT_EQ(Abi::StatusIgnore(), static_cast<void*>(MPI_STATUS_IGNORE));
  EXPECT_EQ(Abi::StatusIgnore(), static_cast<void*>(MPI_STATUSES_IGNORE));
  EXPECT_EQ(kMpiSuccess, MPI_SUCCESS);
  EXPECT_EQ(kMpiThreadSerialized, MPI_THREAD_SERIALIZED);
  EXPECT_EQ(kMpiUndefined, MPI_UNDEFINED);
  EXPECT_GE(kMpiErrorBytesMax, MPI_MAX_ERROR_STRING);
  EXPECT_GE(kMpiVersionBytesMax, MPI_MAX_LIBRARY_VERSION_STRING);
}

TEST(MpiAbiTest, AnErrorHasTheLibrarysText) {
  MpiCalls<MpichAbi> calls;
  calls.mpi.Error_string = [](int code, char* text, int* length) {
    *length = 5;
    std::copy_n("code ", *length, text);
    text[4] = static_cast<char>('0' + code);
    return 0;
  };
  EXPECT_EQ(calls.Error("MPI_Isend", 7).message(), "MPI_Isend: code7");
}

}  // namespace
}  // namespace starring
