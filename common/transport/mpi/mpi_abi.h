// The two binary interfaces that MPI libraries have, as far as this project uses MPI. They differ in the types of
// handles, in the layout of MPI_Status and in the numbers of constants; names and signatures are the standard's. So a
// program that is compiled once runs with either, without a header of one of them.
//
//   OpenMpiAbi  Open MPI 4 and 5: libmpi.so.40. Handles are addresses of objects in the library.
//   MpichAbi    MPICH 3.1 to 4 and those that promise its interface (MPICH ABI Compatibility Initiative): Intel MPI,
//   Cray
//               MPICH, MVAPICH: libmpi.so.12. Handles are numbers.
//
// The numbers are those of mpi.h of Open MPI 4.1 and of MPICH 4.0; both projects keep them.
#ifndef STARRING_COMMON_TRANSPORT_MPI_MPI_ABI_H_
#define STARRING_COMMON_TRANSPORT_MPI_MPI_ABI_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace starring {

// The same in both.
inline constexpr int kMpiSuccess = 0;
inline constexpr int kMpiThreadSerialized = 2;
inline constexpr int kMpiUndefined = -32766;
// At least as long as the longest text of either.
inline constexpr int kMpiErrorBytesMax = 1024;
inline constexpr int kMpiVersionBytesMax = 8192;

struct OpenMpiAbi {
  using Comm = void*;
  using Datatype = void*;
  using Errhandler = void*;
  using Info = void*;
  using Message = void*;
  using Op = void*;
  using Request = void*;
  struct Status {
    int source = 0;
    int tag = 0;
    int error = 0;
    int cancelled = 0;
    size_t count = 0;
  };
  static constexpr int kAnySource = -1;
  static constexpr int kTagUb = 0;
  static constexpr int kErrorName = 38;
  static constexpr int kPortNameBytes = 1024;
  static Status* StatusIgnore() { return nullptr; }
};

struct MpichAbi {
  using Comm = int;
  using Datatype = int;
  using Errhandler = int;
  using Info = int;
  using Message = int;
  using Op = int;
  using Request = int;
  struct Status {
    int count_low = 0;
    int count_high_and_cancelled = 0;
    int source = 0;
    int tag = 0;
    int error = 0;
  };
  static constexpr int kAnySource = -2;
  static constexpr int kTagUb = 0x64400001;
  static constexpr int kErrorName = 33;
  static constexpr int kPortNameBytes = 256;
  // MPICH's MPI_STATUS_IGNORE: the address 1, at which nothing can be.
  static Status* StatusIgnore() { return std::bit_cast<Status*>(uintptr_t{1}); }
};

// The handles that the library defines.
template <class Abi>
struct MpiHandles {
  typename Abi::Comm world{};
  typename Abi::Datatype byte{};
  typename Abi::Datatype float32{};
  typename Abi::Op sum{};
  typename Abi::Request request_null{};
  typename Abi::Message message_null{};
  typename Abi::Errhandler errors_return{};
  typename Abi::Info info_null{};
};

// The functions that are called, X(name, parameters): MPI_name in the library. `A` is the interface.
#define STARRING_MPI_FUNCTIONS(X)                                                                            \
  X(Comm_dup, (typename A::Comm, typename A::Comm*))                                                         \
  X(Comm_free, (typename A::Comm*))                                                                          \
  X(Comm_get_attr, (typename A::Comm, int, void*, int*))                                                     \
  X(Comm_rank, (typename A::Comm, int*))                                                                     \
  X(Comm_set_errhandler, (typename A::Comm, typename A::Errhandler))                                         \
  X(Comm_size, (typename A::Comm, int*))                                                                     \
  X(Error_class, (int, int*))                                                                                \
  X(Error_string, (int, char*, int*))                                                                        \
  X(Finalize, ())                                                                                            \
  X(Get_count, (const typename A::Status*, typename A::Datatype, int*))                                      \
  X(Get_library_version, (char*, int*))                                                                      \
  X(Iallreduce,                                                                                              \
    (const void*, void*, int, typename A::Datatype, typename A::Op, typename A::Comm, typename A::Request*)) \
  X(Improbe, (int, int, typename A::Comm, int*, typename A::Message*, typename A::Status*))                  \
  X(Init_thread, (int*, char***, int, int*))                                                                 \
  X(Irecv, (void*, int, typename A::Datatype, int, int, typename A::Comm, typename A::Request*))             \
  X(Isend, (const void*, int, typename A::Datatype, int, int, typename A::Comm, typename A::Request*))       \
  X(Lookup_name, (const char*, typename A::Info, char*))                                                     \
  X(Mrecv, (void*, int, typename A::Datatype, typename A::Message*, typename A::Status*))                    \
  X(Publish_name, (const char*, typename A::Info, const char*))                                              \
  X(Test, (typename A::Request*, int*, typename A::Status*))                                                 \
  X(Testsome, (int, typename A::Request*, int*, int*, typename A::Status*))

template <class A>
struct MpiFunctions {
#define STARRING_MPI_MEMBER(name, parameters) int(*name) parameters = nullptr;
  STARRING_MPI_FUNCTIONS(STARRING_MPI_MEMBER)
#undef STARRING_MPI_MEMBER
  int (*query_cuda_support)() = nullptr;  // null: the library has no such function
};

// A library's functions and handles. A value that points into the library, which stays loaded.
template <class A>
struct MpiCalls {
  using Abi = A;
  MpiFunctions<Abi> mpi;
  MpiHandles<Abi> handles;

  // Internal, with MPI's own text for `code`, which `call` returned.
  absl::Status Error(const char* call, int code) const {
    char text[kMpiErrorBytesMax] = "";
    int length = 0;
    mpi.Error_string(code, text, &length);
    return absl::InternalError(absl::StrCat(call, ": ", std::string(text, static_cast<size_t>(length))));
  }
};

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_MPI_ABI_H_
