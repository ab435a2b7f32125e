// Memory that two processes share by CUDA IPC. The other process is this program, started again with a command.
#include <cuda.h>
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cuda_emulation/emulated_gpu.h"

namespace starring {
namespace {

using cuda_emulation::Gpu;

constexpr size_t kBlockBytes = 2 << 20;
constexpr unsigned kDeadlineS = 60;  // of the other process
constexpr int kRounds = 100, kPeriod = 4;

// The words that two processes' streams write for each other, and the data that they announce.
constexpr size_t kAsked = 0, kAnswered = 8, kQuestion = 4096, kAnswer = 8192, kDataBytes = 4096;

std::string TextOf(const cudaIpcMemHandle_t& handle) {
  return absl::BytesToHexString(std::string(handle.reserved, sizeof(handle.reserved)));
}

cudaIpcMemHandle_t HandleOf(const std::string& text) {
  cudaIpcMemHandle_t handle = {};
  const std::string bytes = absl::HexStringToBytes(text);
  std::memcpy(handle.reserved, bytes.data(), std::min(bytes.size(), sizeof(handle.reserved)));
  return handle;
}

void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
  std::exit(1);
}

CUstreamBatchMemOpParams Operation(CUstreamBatchMemOpType type, char* block, size_t place, int round) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue = {.operation = type,
                         .address = reinterpret_cast<CUdeviceptr>(block + place),
                         .value64 = 1 + static_cast<uint64_t>(round % kPeriod),
                         .flags = type == CU_STREAM_MEM_OP_WAIT_VALUE_64 ? unsigned{CU_STREAM_WAIT_VALUE_EQ} : 0};
  return operation;
}

void EnqueueOperation(cudaStream_t stream, const CUstreamBatchMemOpParams& operation) {
  CUstreamBatchMemOpParams copy = operation;
  Must(static_cast<cudaError_t>(cuStreamBatchMemOp(stream, 1, &copy, 0)), "cuStreamBatchMemOp");
}

cudaGraphExec_t Captured(cudaStream_t stream, const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  enqueue();
  Must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  Must(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  Must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return executable;
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

// The other process.

char* OpenOrExit(const std::string& handle) {
  void* data = nullptr;
  Must(cudaIpcOpenMemHandle(&data, HandleOf(handle), cudaIpcMemLazyEnablePeerAccess), "open");
  return static_cast<char*>(data);
}

void SayAndWait(const char* line) {
  std::printf("%s\n", line);
  std::fflush(stdout);
  char answer[2];
  (void)!read(STDIN_FILENO, answer, 1);
}

void Close(char* data) { Must(cudaIpcCloseMemHandle(data), "close"); }

// Reads the first and the last byte.
void ReadBlock(const std::string& handle) {
  char* const data = OpenOrExit(handle);
  unsigned char bytes[2] = {};
  Must(cudaMemcpy(&bytes[0], data, 1, cudaMemcpyDeviceToHost), "copy");
  Must(cudaMemcpy(&bytes[1], data + kBlockBytes - 1, 1, cudaMemcpyDefault), "copy");
  std::printf("%d %d\n", bytes[0], bytes[1]);
  Close(data);
}

// Fills the block with 1, 2, ... `times`, a piece of work each. Stays until it hears something.
void FillBlock(const std::string& handle, int times) {
  char* const data = OpenOrExit(handle);
  const cudaStream_t stream = NewStream();
  for (int i = 1; i <= times; ++i) Must(cudaMemsetAsync(data, i, kBlockBytes, stream), "fill");
  Must(cudaStreamSynchronize(stream), "synchronize");
  SayAndWait("filled");
  Close(data);
  Must(cudaStreamDestroy(stream), "destroy");
}

void OpenTwice(const std::string& handle) {
  char* const data = OpenOrExit(handle);
  const bool is_same = OpenOrExit(handle) == data;
  Close(data);
  Must(cudaMemset(data, 1, kBlockBytes), "still open");
  Close(data);
  const bool is_closed = cudaIpcCloseMemHandle(data) == cudaErrorInvalidValue;
  const bool is_gone = cudaMemset(data, 1, kBlockBytes) == cudaErrorInvalidValue;
  std::printf("%d %d %d\n", is_same, is_closed, is_gone);
}

// Answers every question with its copy, in graphs that are all launched before the first question comes.
void AnswerQuestions(const std::string& handle) {
  char* const data = OpenOrExit(handle);
  const cudaStream_t stream = NewStream();
  std::vector<cudaGraphExec_t> graphs;
  for (int round = 0; round < kPeriod; ++round) {
    graphs.push_back(Captured(stream, [&] {
      EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, data, kAsked, round));
      Must(cudaMemcpyAsync(data + kAnswer, data + kQuestion, kDataBytes, cudaMemcpyDeviceToDevice, stream), "copy");
      EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, data, kAnswered, round));
    }));
  }
  for (int round = 0; round < kRounds; ++round) {
    Must(cudaGraphLaunch(graphs[static_cast<size_t>(round % kPeriod)], stream), "launch");
  }
  SayAndWait("launched");
  Must(cudaStreamSynchronize(stream), "synchronize");
  for (const cudaGraphExec_t graph : graphs) Must(cudaGraphExecDestroy(graph), "destroy");
  Must(cudaStreamDestroy(stream), "destroy");
  Close(data);
  std::printf("answered\n");
}

int RunOther(const std::string& command, const std::string& handle) {
  alarm(kDeadlineS);
  void* data = nullptr;
  if (command == "gpu 1") Must(cudaSetDevice(1), "cudaSetDevice");
  if (command == "flags") {
    std::printf("%s\n", cudaGetErrorName(cudaIpcOpenMemHandle(&data, HandleOf(handle), 0)));
  } else if (command == "read") {
    ReadBlock(handle);
  } else if (command.starts_with("fill ")) {
    FillBlock(handle, std::atoi(command.c_str() + 5));
  } else if (command == "overrun") {
    OpenOrExit(handle)[kBlockBytes] = 1;
  } else if (command == "export") {
    cudaIpcMemHandle_t again;
    std::printf("%s\n", cudaGetErrorName(cudaIpcGetMemHandle(&again, OpenOrExit(handle))));
    std::printf("%s\n", cudaGetErrorName(cudaFree(OpenOrExit(handle))));
  } else if (command == "open twice") {
    OpenTwice(handle);
  } else if (command == "answer") {
    AnswerQuestions(handle);
  } else {  // "open" and "gpu 1"
    Close(OpenOrExit(handle));
    std::printf("opened\n");
  }
  return 0;
}

// The tests.

using Environment = std::map<std::string, std::string>;

class Other {
 public:
  Other(const std::string& command, const cudaIpcMemHandle_t& handle, const Environment& environment = {}) {
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    const std::string text = TextOf(handle);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const int end : {in[0], in[1], out[0], out[1]}) close(end);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execl("/proc/self/exe", "other", "--other", command.c_str(), text.c_str(), nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Other() {
    if (pid_ > 0) kill(pid_, SIGKILL);
    (void)End();
    close(out_);
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  std::string Line() {
    std::string line;
    for (char c = 0; read(out_, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void GoOn() { (void)!write(in_, "\n", 1); }
  // As waitpid has it.
  int End() {
    if (in_ >= 0) close(std::exchange(in_, -1));
    int status = 0;
    if (pid_ > 0) waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  void Kill() { kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

std::string Outcome(const std::string& command, const cudaIpcMemHandle_t& handle, const Environment& environment = {}) {
  Other other(command, handle, environment);
  return other.Line();
}

class EmulatedIpcTest : public testing::Test {
 protected:
  EmulatedIpcTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&data_, kBlockBytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 7, kBlockBytes), cudaSuccess);
    EXPECT_EQ(cudaIpcGetMemHandle(&handle_, data_), cudaSuccess);
  }
  ~EmulatedIpcTest() override {
    EXPECT_EQ(cudaFree(data_), cudaSuccess);  // also of none
    Gpu() = {};
    EXPECT_EQ(cuda_emulation::DeviceBytes(), 0);
  }

  void Free() { ASSERT_EQ(cudaFree(std::exchange(data_, nullptr)), cudaSuccess); }

  char* block() const { return static_cast<char*>(data_); }
  // How many bytes of the block have this value.
  size_t Count(char value) const { return static_cast<size_t>(std::count(block(), block() + kBlockBytes, value)); }

  void* data_ = nullptr;
  cudaIpcMemHandle_t handle_ = {};
};

TEST_F(EmulatedIpcTest, AnotherProcessReadsAndWritesTheMemory) {
  EXPECT_EQ(Count(7), kBlockBytes);  // the export has changed nothing
  EXPECT_EQ(Outcome("read", handle_), "7 7");
  Other other("fill 1", handle_);
  ASSERT_EQ(other.Line(), "filled");
  EXPECT_EQ(Count(1), kBlockBytes);
  other.GoOn();
  EXPECT_EQ(other.End(), 0);
}

TEST_F(EmulatedIpcTest, AHandleIsOneOfTheWholeBlock) {
  cudaIpcMemHandle_t middle;
  ASSERT_EQ(cudaIpcGetMemHandle(&middle, block() + kBlockBytes / 2), cudaSuccess);
  EXPECT_EQ(TextOf(middle), TextOf(handle_));
  CUdeviceptr begin = 0;
  size_t size_bytes = 0;
  ASSERT_EQ(cuMemGetAddressRange(&begin, &size_bytes, reinterpret_cast<CUdeviceptr>(block() + 5)), CUDA_SUCCESS);
  EXPECT_EQ(begin, reinterpret_cast<CUdeviceptr>(data_));
  EXPECT_EQ(size_bytes, kBlockBytes);
  EXPECT_EQ(cuMemGetAddressRange(&begin, &size_bytes, reinterpret_cast<CUdeviceptr>(block() + kBlockBytes)),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Outcome("open twice", handle_), "1 1 1");
}

TEST_F(EmulatedIpcTest, AnAccessBehindTheBlockEndsTheProcess) {
  Other other("overrun", handle_);
  const int status = other.End();
  // AddressSanitizer ends a process by its own code.
  EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 0) << status;
  void* fresh = nullptr;
  ASSERT_EQ(cudaMalloc(&fresh, kBlockBytes), cudaSuccess);  // and of the owner, exported or not
  EXPECT_EQ(reinterpret_cast<uintptr_t>(fresh) % 256, 0u);
  EXPECT_DEATH(static_cast<char*>(fresh)[kBlockBytes] = 1, "");
  EXPECT_DEATH(block()[kBlockBytes] = 1, "");
  EXPECT_EQ(cudaFree(fresh), cudaSuccess);
}

TEST_F(EmulatedIpcTest, RefusesToExportWhatIsNoBlockOfItsOwn) {
  void* small = nullptr;
  ASSERT_EQ(cudaMalloc(&small, kBlockBytes + 256), cudaSuccess);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, small), cudaErrorInvalidValue);
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, &small), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(small), cudaSuccess);
  Other other("export", handle_);
  EXPECT_EQ(other.Line(), "cudaErrorInvalidValue");
  EXPECT_EQ(other.Line(), "cudaErrorInvalidValue");
}

TEST_F(EmulatedIpcTest, RefusesHandlesThatNameNoMemoryOfAnother) {
  void* data = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&data, handle_, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized);
  EXPECT_EQ(Outcome("open", {}), "open: cudaErrorInvalidResourceHandle");
  EXPECT_EQ(Outcome("flags", handle_), "cudaErrorInvalidValue");
  for (const size_t byte : {8u, 16u, 24u}) {  // of another boot, of another nonce, of another size
    cudaIpcMemHandle_t other = handle_;
    other.reserved[byte] ^= 1;
    EXPECT_EQ(Outcome("open", other), "open: cudaErrorInvalidResourceHandle");
  }
  Free();
  EXPECT_EQ(Outcome("open", handle_), "open: cudaErrorInvalidResourceHandle");
}

TEST_F(EmulatedIpcTest, RefusesInACapture) {
  const cudaStream_t stream = NewStream();
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  cudaIpcMemHandle_t handle;
  void* data = nullptr;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, data_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaIpcOpenMemHandle(&data, handle_, cudaIpcMemLazyEnablePeerAccess), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatedIpcTest, GpusAccessEachOtherIfTheMachineLetsThem) {
  int can = -1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 2), cudaErrorInvalidDevice);
  EXPECT_EQ(Outcome("gpu 1", handle_), "opened");
  const Environment apart = {{"EMULATED_GPU_PEERS", "no"}};
  EXPECT_EQ(Outcome("gpu 1", handle_, apart), "open: cudaErrorPeerAccessUnsupported");
  EXPECT_EQ(Outcome("open", handle_, apart), "opened");
  Gpu().accesses_peers = false;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
}

TEST_F(EmulatedIpcTest, FreeingWhatAnotherProcessHasOpenStopsThisOne) {
  Other other("fill 1", handle_);
  ASSERT_EQ(other.Line(), "filled");
  EXPECT_DEATH(cudaFree(data_), "cudaFree of memory that process [0-9]+ still has open");
  other.Kill();
  other.End();
  Free();  // a process that was killed has closed nothing, and has nothing open
}

TEST_F(EmulatedIpcTest, StreamsOfTwoProcessesWaitForEachOther) {
  Gpu() = {.async = true, .async_seed = 3};
  Other other("answer", handle_, {{"EMULATED_GPU_STREAMS", "async:5"}});
  ASSERT_EQ(other.Line(), "launched");
  const cudaStream_t stream = NewStream();
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, kRounds), cudaSuccess);
  for (int round = 0; round < kRounds; ++round) {
    Must(cudaMemsetAsync(block() + kQuestion, 1 + round, kDataBytes, stream), "question");
    EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, block(), kAsked, round));
    EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, block(), kAnswered, round));
    Must(cudaMemcpyAsync(static_cast<char*>(pinned) + round, block() + kAnswer + kDataBytes - 1, 1,
                         cudaMemcpyDeviceToHost, stream),
         "answer");
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int round = 0; round < kRounds; ++round) EXPECT_EQ(static_cast<char*>(pinned)[round], 1 + round);
  other.GoOn();
  EXPECT_EQ(other.Line(), "answered");
  EXPECT_EQ(other.End(), 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatedIpcTest, AStreamWhosePeerIsKilledEndsAtTheDeadline) {
  Gpu() = {.async = true, .wait_deadline_ms = 50};
  Other other("answer", handle_, {{"EMULATED_GPU_STREAMS", "async"}, {"EMULATED_GPU_DIES_AT_LAUNCH", "3"}});
  const int status = other.End();
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  const cudaStream_t stream = NewStream();
  EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, block(), kAnswered, 2));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
  const cudaStream_t release = NewStream();
  EnqueueOperation(release, Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, block(), kAnswered, 2));
  Gpu().wait_deadline_ms = 60'000;
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (cudaStream_t const ended : {stream, release}) EXPECT_EQ(cudaStreamDestroy(ended), cudaSuccess);
}

// Faults of the machine.

Environment Fault(const char* fault) { return {{"EMULATED_GPU_IPC", fault}}; }

TEST_F(EmulatedIpcTest, WithoutIpcNothingIsExportedOrOpened) {
  EXPECT_EQ(Outcome("open", handle_, Fault("nothing")), "open: cudaErrorNotSupported");
  Gpu().ipc = cuda_emulation::EmulatedGpu::Ipc::kNothing;
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, data_), cudaErrorNotSupported);
}

TEST_F(EmulatedIpcTest, OneWayTheWritesOfAProcessStayThere) {
  EXPECT_EQ(Outcome("read", handle_, Fault("one_way")), "7 7");
  Other other("fill 1", handle_, Fault("one_way"));
  ASSERT_EQ(other.Line(), "filled");
  EXPECT_EQ(Count(7), kBlockBytes);
}

TEST_F(EmulatedIpcTest, CorruptMemoryLosesABitNowAndThen) {
  // The eighth piece of work leaves one wrong byte, which the ninth overwrites.
  for (const char value : {1, 8, 9}) {
    ASSERT_EQ(cudaMemset(data_, 0, kBlockBytes), cudaSuccess);
    Other other("fill " + std::to_string(value), handle_, Fault("corrupt"));
    ASSERT_EQ(other.Line(), "filled");
    EXPECT_EQ(Count(value), value == 8 ? kBlockBytes - 1 : kBlockBytes);
  }
}

TEST_F(EmulatedIpcTest, LateMemoryArrivesThreePiecesOfWorkLaterOrAtTheClose) {
  Other other("fill 9", handle_, Fault("late_visible"));
  ASSERT_EQ(other.Line(), "filled");
  EXPECT_EQ(Count(6), kBlockBytes);
  other.GoOn();
  EXPECT_EQ(other.End(), 0);
  EXPECT_EQ(Count(9), kBlockBytes);
}

TEST_F(EmulatedIpcTest, ALateProcessSeesItsOwnWritesAndThoseOfOthers) {
  // Every answer is copied from a question that the owner wrote, and announced before it is there: some are wrong.
  Gpu() = {.async = true};
  Environment environment = Fault("late_visible");
  environment["EMULATED_GPU_STREAMS"] = "async";
  Other other("answer", handle_, environment);
  ASSERT_EQ(other.Line(), "launched");
  const cudaStream_t stream = NewStream();
  std::vector<char> answers;
  for (int round = 0; round < kRounds; ++round) {
    Must(cudaMemsetAsync(block() + kQuestion, 1 + round, kDataBytes, stream), "question");
    EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WRITE_VALUE_64, block(), kAsked, round));
    EnqueueOperation(stream, Operation(CU_STREAM_MEM_OP_WAIT_VALUE_64, block(), kAnswered, round));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    answers.push_back(block()[kAnswer]);
  }
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) wrong += answers[static_cast<size_t>(round)] == 1 + round ? 0 : 1;
  EXPECT_GT(wrong, kRounds / 2);
  other.GoOn();
  EXPECT_EQ(other.End(), 0);
  EXPECT_EQ(block()[kAnswer], kRounds);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace starring

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--other") return starring::RunOther(argv[2], argv[3]);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
