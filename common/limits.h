// The limits of queues, waits and sizes, each with its reason. A limit that is reached is an error with a message or
// back pressure, never a crash.
#ifndef STARRING_COMMON_LIMITS_H_
#define STARRING_COMMON_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace starring {

// Ranks of one job. The owner of a slice keeps one contribution per rank, and a sum in rank order reads as many
// streams.
inline constexpr int kWorldSizeMax = 1024;

// Server shards of one star. Every worker holds several connections to each.
inline constexpr int kShardCountMax = 256;

// Buckets of one parameter vector. A bucket costs some hundred bytes of bookkeeping in every process and a message to
// every owner in every step; more than this is a mistyped --bucket_bytes.
inline constexpr int kBucketCountMax = 1 << 16;

// Elements of one parameter vector, gaps included: 256 GiB of float32. Keeps products of byte counts far from 2^63.
inline constexpr int64_t kElementCountMax = int64_t{1} << 36;

// Tensors of one layout, and axes of one tensor.
inline constexpr int kTensorCountMax = 1 << 20;
inline constexpr int kTensorAxesMax = 8;

// The step that a run begins with: steps are counted up from it for as long as the run goes on, without an overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 48;

// Values of one GradientExchange::Sum: statistics, not tensors.
inline constexpr int64_t kSumValuesMax = 4096;

// Buffers that a parameter shard keeps per bucket: the sealed slice, the one the next step is written to, and one that
// a slow or repeated reply may still hold. Each is as long as the slice. A shard allocates a fresh one only when
// somebody holds all of them.
inline constexpr int kSliceBuffersMax = 3;

// A safetensors header is some 100 bytes a tensor; a longer one is no model but an attack or an accident.
inline constexpr int64_t kSafetensorsHeaderBytesMax = int64_t{1} << 26;

// The same for the header of a checkpoint's file, whose tensors are known before it is read: so many bytes, and so many
// more for each tensor. Parsed, a header takes some 25 times its size.
inline constexpr int64_t kTensorHeaderBytesMin = int64_t{1} << 20;
inline constexpr int64_t kTensorHeaderBytesMax = 1024;

// A manifest: flags, files and at most so many owner ranges, of 100 bytes each. A run with more of them leaves them
// out, as no person would read them; earlier builds wrote all of them.
inline constexpr int64_t kManifestOwnerRangesMax = 4096;
inline constexpr int64_t kManifestBytesMax = int64_t{1} << 24;

// Complete checkpoints that stay in a folder: the newest, and one to fall back to if the disk lies.
inline constexpr int kCheckpointsKept = 2;

// Layer files. A size a person writes by hand; the longest name is a file's name's. Widths are channels and units.
inline constexpr int64_t kLayerFileBytesMax = 1 << 20;
inline constexpr int kLayerCountMax = 4096;
inline constexpr int64_t kLayerNameBytesMax = 255;
inline constexpr int64_t kLayerWidthMax = 1 << 20;
inline constexpr int64_t kLayerKernelMax = 1 << 12;
inline constexpr int64_t kSampleElementsMax = int64_t{1} << 31;

// Batch sizes that a network keeps operations for. A run has at most two sizes in training and two in evaluation.
inline constexpr size_t kNetworkPlansMax = 8;

// Bytes of images of one data set, and their number: a header that promises more is damaged, and the sampler draws 32
// bits. Sides and channels of an image: far from overflow when multiplied.
inline constexpr int64_t kDatasetBytesMax = int64_t{16} << 30;
inline constexpr int64_t kDatasetImagesMax = (int64_t{1} << 32) - 1;
inline constexpr int64_t kImageSideMax = 8192;
inline constexpr int64_t kImageChannelsMax = 256;

// Threads that fill batches, and batches ready ahead of the trainer: each is a buffer of a whole batch.
inline constexpr int kLoaderThreadsMax = 256;
inline constexpr int kPrefetchDepthMax = 64;

// Lanes (streams, each with a connection of its own) between one worker and one shard. Two to four fill a loopback or a
// 10 Gbit/s link; every lane costs buffers on both sides.
inline constexpr int kLanesMax = 16;

// Requests of one lane that are sent and not yet answered; further ones wait at the worker. With slices of 1 MB this
// bounds what a server holds of a worker that is ahead of the others.
inline constexpr int kLaneRequestsMax = 8;

// Answers that wait at the server to be written to one lane: more than a worker may have asked for, so a lane beyond it
// is broken or hostile, and is cut.
inline constexpr int kLaneAnswersMax = 4 * kLaneRequestsMax;

// The fields of an exchange message without its payload: numbers and at most one status text.
inline constexpr int64_t kMessageFieldsBytesMax = 64 << 10;

// The text of a status on its way. gRPC sends it as metadata, of which a client takes 8 KiB in all.
inline constexpr int64_t kStatusTextBytesMax = 4 << 10;

// The payload of one message; a longer slice travels in parts. A receiver buffers a whole message before it can look at
// it, from whomever it comes. Far above the slices of 1 to 2 MB that travel fastest, so that few are ever cut.
inline constexpr int64_t kMessagePayloadBytesMax = int64_t{64} << 20;
inline constexpr int64_t kMessageBytesMax = kMessagePayloadBytesMax + kMessageFieldsBytesMax;

// A bucket is the unit of overlap and of MPI's messages, whose lengths are 31 bits; the best are a few MB.
inline constexpr int64_t kBucketBytesMax = int64_t{1} << 30;

// A Join: the agreement has a hundred bytes a flag.
inline constexpr int64_t kJoinBytesMax = 64 << 10;

// The longest deadline that a worker may ask for; a longer one counts as this. A year, so that milliseconds and
// nanoseconds are far from overflow.
inline constexpr int64_t kDeadlineMsMax = int64_t{365} * 24 * 3600 * 1000;

// Operations that the ring has in flight at a time (sends and receives, at 4 a reduction block for two ranks): enough
// to hide a message's latency behind the additions. Every poll looks at all of them, and every block has a chunk of
// scratch memory, which together should fit a core's L2 cache.
inline constexpr int kRingOperationsInFlightMax = 24;

// One message when rank 0's parameters travel from rank to rank at the start.
inline constexpr int64_t kBroadcastSegmentBytes = int64_t{1} << 20;

// One message when a rank's part of the optimizer's state goes to rank 0. MPI counts bytes of a message in 31 bits, and
// a transport need not buffer more than this.
inline constexpr int64_t kTransferSegmentBytes = int64_t{1} << 20;

// Stragglers in a run record. One is found a minute at most, and a rank that stays slow is one entry: a longer list is
// of ranks that take turns, and is not read.
inline constexpr int64_t kStragglersRecordedMax = 100;

// What a worker that gives up tells its ring about the reason; longer texts are cut. Small enough that MPI sends it
// without waiting for the receiver.
inline constexpr int kAbortNoticeBytesMax = 1024;

// Events that one track of a trace keeps, the newest: 7 MB of memory, and some 20 MB of JSON, which a browser still
// opens. A step of lenet5 is about 30 of them.
inline constexpr int64_t kTraceEventsMax = int64_t{1} << 17;

// Full tracks that all lanes of a server share: 112 MB, however many workers there are.
inline constexpr int64_t kServerTracksMax = 16;

// A private key, a certificate and a chain of some more, as text.
inline constexpr size_t kSecretFileBytesMax = 64 << 10;

// The name of a run, which a server keeps and prints: a job's number, or what a person types.
inline constexpr size_t kRunIdBytesMax = 255;

// A check before training (worker --check). A note is one worker's report: some 150 bytes for each server or rank that
// it dialled. A server keeps those of all workers while they check, and no longer.
inline constexpr int kCheckStagesMax = 5;
inline constexpr int64_t kCheckNoteBytesMax = 64 << 10;
// One rank's addresses, where MPI itself has to gather them: all ranks' fit one collective's buffer.
inline constexpr int64_t kCheckCardBytesMax = 4 << 10;
inline constexpr int64_t kCheckBoardBytesMax = 32 << 20;
// One message of a bandwidth test, and one whole test: enough to fill a link, too little to hinder a neighbour.
inline constexpr int64_t kCheckPayloadBytesMax = 1 << 20;
inline constexpr int64_t kCheckBandwidthBytesMax = 16 << 20;
// Connections of checks that a server ever exempts from what strangers may send: four checks of the largest job. Then
// bandwidths are not tested any more.
inline constexpr int kCheckConnectionsMax = 4 * kWorldSizeMax;

inline constexpr int kPortMax = 65535;  // of TCP

// Connections at a server that are not known to be a worker's: workers that have just connected, monitors, strangers.
// A worker's own connections come on top, as many as its job has. Few, because each may buffer kStrangerBytesMax.
inline constexpr int kStrangerConnectionsMax = 64;

// What such a connection may send before it is cut, and how much more for every second of its age: handshakes, a Join
// and its repeats, or GetStatus once a second for ever. 64 of them then fill 22 MiB in the time to HELLO.
inline constexpr int64_t kStrangerBytesMax = 256 << 10;
inline constexpr int64_t kStrangerBytesPerSecond = 8 << 10;

// How long such a connection stays at least before it is cut for another one: a worker says HELLO within milliseconds,
// on a busy machine within a tenth of a second.
inline constexpr int kStrangerLifeMinMs = 250;

// How long its place is taken at least while the job has all its connections, even if it ends before. So strangers open
// at most 64 connections a second, which cost a server some percent of a core; as many as came, each with 200 streams,
// took all of it. While a worker is missing the places are free at once, as it may be among those who wait.
inline constexpr int kStrangerSeatMs = 1000;

// Streams of one connection. A worker opens one lane on each of its connections and one call beside it; a client of
// another kind that opens all its lanes on one connection needs a second one for more than seven. Few, because 64
// strangers with 20 streams each took 59 to 119 MiB of a server.
inline constexpr int kStreamsPerConnectionMax = 8;

// A connection must have shaken hands by then, and a stream must have said HELLO: both take milliseconds, and what
// takes longer holds memory and descriptors for nobody.
inline constexpr int kHelloDeadlineMs = 10'000;

// Descriptors of one connection at a server: gRPC's, and the one by which it is watched and cut.
inline constexpr int64_t kDescriptorsPerConnection = 2;

// What a process has open beside connections: standard streams, epoll, shared memory, files, libraries.
inline constexpr int64_t kOtherDescriptorsMax = 64;

// What a server or worker raises its soft limit to, as far as the hard one allows: kWorldSizeMax workers of 16 lanes.
inline constexpr int64_t kDescriptorsMax =
    kOtherDescriptorsMax + kDescriptorsPerConnection * (int64_t{kWorldSizeMax} * kLanesMax + kStrangerConnectionsMax);

// --memory_limit_gb: a petabyte, far from overflow in bytes.
inline constexpr double kMemoryLimitGbMax = 1e6;

// A line of the server's log, which quotes what others sent, and such lines in so many milliseconds: a stranger must
// fill neither disk nor terminal. Ranks that a message names, of perhaps a thousand.
inline constexpr size_t kLogLineBytesMax = 1024;
inline constexpr int64_t kLogRefusalsMax = 20;
inline constexpr int64_t kLogPeriodMs = 10'000;
inline constexpr int kRanksNamedMax = 16;

// The first message of a lane, HELLO: five numbers.
inline constexpr int64_t kHelloBytesMax = 4 << 10;

// What the launcher keeps of a job's output while its terminal is stopped or nobody empties its pipe: some minutes of a
// chatty job. More is left out.
inline constexpr size_t kLaunchOutputBytesMax = size_t{4} << 20;

// Files of flags: a person writes them by hand. Depth and number end a file that names itself.
inline constexpr int64_t kFlagFileBytesMax = 64 << 10;
inline constexpr int64_t kFlagLineBytesMax = 8 << 10;
inline constexpr int kFlagFileDepthMax = 4;
inline constexpr int kFlagFilesMax = 16;

// Numbers on a command line. Each is far above any use and far below an overflow when it is multiplied: a larger one is
// a typing error.
inline constexpr int64_t kStepCountMax = 1'000'000'000'000;
inline constexpr int64_t kEpochCountMax = 1'000'000;
inline constexpr int64_t kGlobalBatchMax = 1 << 24;
inline constexpr int kComputeThreadsMax = 1024;
inline constexpr int kCoreCountMax = 4096;
inline constexpr int kRestartCountMax = 1000;
inline constexpr int kDeadlineSecondsMax = 7 * 24 * 3600;  // a week: longer than a machine's maintenance
inline constexpr int kStartSecondsMax = 3600;              // for processes of this machine to start or to save

}  // namespace starring

#endif  // STARRING_COMMON_LIMITS_H_
