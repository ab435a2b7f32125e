// The limits of queues, waits and sizes, each with its reason. A limit that is reached is an error with a message or
// back pressure, never a crash.
#ifndef STARRING_COMMON_BASE_LIMITS_H_
#define STARRING_COMMON_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

namespace starring {

// Ranks of one job. The owner of a slice keeps one contribution of each rank, and their sum reads as many arrays at
// once.
inline constexpr int kWorldSizeMax = 1024;
// Leaves of one sum: as many as it may have workers.
inline constexpr int kMicroBatchesMax = kWorldSizeMax;

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

// The step that a run may begin with at most: the steps that the run adds to it cannot overflow.
inline constexpr int64_t kStepMax = int64_t{1} << 48;

// Values of one GradientExchange::Sum: statistics, not tensors.
inline constexpr int64_t kSumValuesMax = 4096;

// Buffers that a server keeps for its slice of each bucket: one with the newest parameters, one that the next step is
// written to, and one that a slow or repeated answer may still hold. Each is as long as the slice. A server allocates a
// fresh one only when all of them are held.
inline constexpr int kSliceBuffersMax = 3;

// A safetensors header has some 100 bytes for each tensor; a longer one is an attack or an accident, not a model.
inline constexpr int64_t kSafetensorsHeaderBytesMax = int64_t{1} << 26;

// The header of a checkpoint's file, whose tensors are known before it is read: a fixed number of bytes, plus a number
// for each tensor. A parsed header takes some 25 times its size.
inline constexpr int64_t kTensorHeaderBytesMin = int64_t{1} << 20;
inline constexpr int64_t kTensorHeaderBytesMax = 1024;

// A manifest: flags, files and at most this many owner ranges, of 100 bytes each. A run with more owner ranges leaves
// them out, as no person would read them.
inline constexpr int64_t kManifestOwnerRangesMax = 4096;
inline constexpr int64_t kManifestBytesMax = int64_t{1} << 24;

// Complete checkpoints that stay in a folder: the newest, and one to fall back to if the disk returns other bytes.
inline constexpr int kCheckpointsKept = 2;

// A file of weights to begin with: those of the largest parameter vector that a layer file describes.
inline constexpr int64_t kWarmStartBytesMax = int64_t{16} << 30;

// Layer files. A person writes them by hand; a name may be as long as a file's name. Widths are channels and units.
inline constexpr int64_t kLayerFileBytesMax = 1 << 20;
inline constexpr int kLayerCountMax = 4096;
inline constexpr int64_t kLayerNameBytesMax = 255;
inline constexpr int64_t kLayerWidthMax = 1 << 20;
inline constexpr int64_t kLayerKernelMax = 1 << 12;
// Each input of a concat is an operation of every step.
inline constexpr int kConcatInputsMax = 64;
inline constexpr int64_t kSampleElementsMax = int64_t{1} << 31;

// Batch sizes that a network keeps operations for. A run has at most two sizes in training and two in evaluation.
inline constexpr size_t kNetworkPlansMax = 8;

// Bytes and number of the images of one data set: a header that promises more is damaged, and the sampler draws 32
// bits. Sides and channels of an image: far from overflow when multiplied.
inline constexpr int64_t kDatasetBytesMax = int64_t{16} << 30;
inline constexpr int64_t kDatasetImagesMax = (int64_t{1} << 32) - 1;
inline constexpr int64_t kImageSideMax = 8192;
inline constexpr int64_t kImageChannelsMax = 256;
inline constexpr int64_t kColumnsMax = 1 << 16;  // of a sample that is no image

// NumPy's files: its own writes headers of some hundred bytes, and has at most 32 dimensions, of which data use 4. A
// zip archive of arrays has a few members.
inline constexpr int64_t kNpyHeaderBytesMax = 64 << 10;
inline constexpr int kNpyDimensionsMax = 32;
inline constexpr int64_t kZipMembersMax = 1024;
inline constexpr int64_t kZipDirectoryBytesMax = 1 << 20;

// Threads that fill batches, and batches ready ahead of the trainer: each is a buffer of a whole batch.
inline constexpr int kLoaderThreadsMax = 256;
inline constexpr int kPrefetchDepthMax = 64;

// Batches that a loop in Python holds at a time (worker/python/batch_lender.h): each sample of MNIST as a batch of its
// own. A loop that holds more never lets any go.
inline constexpr int64_t kBatchesLentMax = int64_t{1} << 16;

// Lanes (TCP connections) between one worker and one server. One is enough for a loopback and for 1 Gbit/s, where it is
// better than two: buckets arrive one after the other, and a sum need not wait while the next bucket shares the link.
// Every lane costs buffers on both sides.
inline constexpr int kLanesMax = 16;

// Requests of one lane that are sent and not yet answered, those without a payload as well; further ones wait at the
// worker.
inline constexpr int kLaneRequestsMax = 8;

// Slices that a worker has on their way to one shard, sent and not yet answered, on all its lanes together; at least
// one for each lane. TCP does not share a link evenly, and a shard's sum waits for the slowest worker: the further the
// others are ahead, the longer links are idle when the gradients have been sent and parameters are still to come. Four
// slices are enough for one to travel up, one to wait for its sum, one to travel down and one to follow. With 4 workers
// and 4 shards on hosts of their own, links of 400 Mbit/s and slices of 128 KiB, a step of 16 MiB takes 1.27 times its
// bound with two slices, 1.16 with three, 1.11 with four and 1.19 with eight. The limit also bounds the slices that a
// server holds for a worker that is ahead of the others. Arrays in shared memory do not travel, and are not counted.
inline constexpr int kShardSlicesMax = 4;

// Answers that wait at the server to be written to one lane: more than a worker may have asked for, so a lane that
// needs more is broken or hostile, and is cut.
inline constexpr int kLaneAnswersMax = 4 * kLaneRequestsMax;

// Orders that wait for a member of an elastic run to read them (server/elastic/attend_stream.h).
inline constexpr int kOrdersWaitingMax = 64;

// The name of a member of an elastic run, or its address: a host's name has 253 bytes, and a person reads the rest.
inline constexpr size_t kMemberNameBytesMax = 512;

// Snapshots of one shard that the coordinator looks at. A shard has a handful, and more only while another shard cannot
// write its own. All then have the oldest, and the newest ones.
inline constexpr int64_t kSnapshotsReportedMax = 256;

// The fields of an exchange message without its payload: numbers and at most one status text.
inline constexpr int64_t kMessageFieldsBytesMax = 64 << 10;

// The text of a status in a message. gRPC sends it as metadata, and a client accepts 8 KiB of metadata in all.
inline constexpr int64_t kStatusTextBytesMax = 4 << 10;

// The payload of one message; a longer slice travels in parts. A receiver buffers a whole message before it knows who
// sent it. Far above the slices of 1 to 2 MB that travel fastest, so that few slices are ever cut.
inline constexpr int64_t kMessagePayloadBytesMax = int64_t{64} << 20;
inline constexpr int64_t kMessageBytesMax = kMessagePayloadBytesMax + kMessageFieldsBytesMax;

// A bucket is the unit of overlap and of MPI's messages, whose lengths have 31 bits; buckets of a few MB are best.
inline constexpr int64_t kBucketBytesMax = int64_t{1} << 30;

// A Join: its agreement has a hundred bytes for each flag.
inline constexpr int64_t kJoinBytesMax = 64 << 10;

// The longest deadline that a worker may ask for; a longer one counts as this. A year, so that milliseconds and
// nanoseconds are far from overflow.
inline constexpr int64_t kDeadlineMsMax = int64_t{365} * 24 * 3600 * 1000;

// Sends and receives that the ring has in flight at a time. Between two ranks a reduction block has 4 of them. They
// are enough for additions to hide a message's latency. Every poll looks at all of them, and every block has a chunk
// of scratch memory; all chunks together should fit a core's L2 cache.
inline constexpr int kRingOperationsInFlightMax = 24;

// One message when rank 0's parameters travel from rank to rank at the start.
inline constexpr int64_t kBroadcastSegmentBytes = int64_t{1} << 20;

// One message when a rank's part of the optimizer's state goes to rank 0. MPI counts bytes of a message in 31 bits, and
// a transport need not buffer more than this.
inline constexpr int64_t kTransferSegmentBytes = int64_t{1} << 20;

// Stragglers in a run record. At most one is found a minute, and a rank that stays slow is one entry: a longer list
// means that ranks take turns in being slow, and no person reads it.
inline constexpr int64_t kStragglersRecordedMax = 100;

// The reason that a worker sends around its ring when it gives up; a longer text is cut. Small enough that MPI sends it
// without waiting for the receiver.
inline constexpr int kAbortNoticeBytesMax = 1024;

// Events that one track of a trace keeps, the newest: 7 MB of memory, and some 20 MB of JSON, which a browser still
// opens. A step of lenet5 has about 30 events.
inline constexpr int64_t kTraceEventsMax = int64_t{1} << 17;

// All lanes of a server together keep as many events as this many full tracks: 112 MB, however many workers there are.
inline constexpr int64_t kServerTracksMax = 16;

// A private key, a certificate and its chain, as text.
inline constexpr size_t kSecretFileBytesMax = 64 << 10;
// Certificates that a peer's may be signed by (--tls_ca): a system's whole list has a quarter of this.
inline constexpr size_t kCertificatesBytesMax = 1 << 20;

// The name of a run, which a server keeps and prints: a job's number, or a name that a person types.
inline constexpr size_t kRunIdBytesMax = 255;

// A check before training (worker --check). A note is one worker's report: some 150 bytes for each server or rank that
// it dialled. A server keeps the notes of all workers only while they check.
inline constexpr int kCheckStagesMax = 5;
inline constexpr int64_t kCheckNoteBytesMax = 64 << 10;
// One rank's addresses, where MPI itself has to gather them: the addresses of all ranks fit one collective's buffer.
inline constexpr int64_t kCheckCardBytesMax = 4 << 10;
inline constexpr int64_t kCheckBoardBytesMax = 32 << 20;
// One message of a bandwidth test, and one whole test: enough to fill a link, too little to disturb other jobs.
inline constexpr int64_t kCheckPayloadBytesMax = 1 << 20;
inline constexpr int64_t kCheckBandwidthBytesMax = 16 << 20;
// Connections that a server exempts, for checks, from the limit on what strangers may send: enough for four checks of
// the largest job. After that bandwidths are no longer tested.
inline constexpr int kCheckConnectionsMax = 4 * kWorldSizeMax;

inline constexpr int kPortMax = 65535;  // TCP

// Connections at a server that are not known to be a worker's: workers that have just connected, monitors, strangers.
// Workers' own connections are not counted here. Few, because each connection may buffer kStrangerBytesMax.
inline constexpr int kStrangerConnectionsMax = 64;

// Bytes that such a connection may send before it is cut, and further bytes for every second of its age. They are
// enough for handshakes, for a Join and its repeats, or for GetStatus once a second for ever. 64 such connections fill
// 22 MiB in the time to HELLO. A burst can be longer, up to HTTP/2's window of 4 MiB, before the server looks.
inline constexpr int64_t kStrangerBytesMax = 256 << 10;
inline constexpr int64_t kStrangerBytesPerSecond = 8 << 10;

// How long such a connection stays at least before it is cut for another one: a worker says HELLO within milliseconds,
// on a busy machine within a tenth of a second.
inline constexpr int kStrangerLifeMinMs = 250;

// How long it may stay at most while the server has still to read what it sends, and kStrangerLifeMinMs after that: it
// may be a worker, whose HELLO waits for its turn after the data of other strangers. In a flood of connections with 200
// streams each, the next byte of a connection was read after 0.6 to 1 s, and workers were cut again and again. The time
// is not longer, because connections that wait for a place would wait too long: it admits 32 strangers a second in the
// worst case.
inline constexpr int kStrangerUnreadLifeMaxMs = 2000;

// How long such a connection keeps its place at least, even if it ends earlier, while the job has all its connections.
// So strangers open at most 64 connections a second, which cost a server a few percent of a core; without this limit,
// strangers with 200 streams each took a whole core. While a worker is missing, places are free at once, because the
// worker may be among those that wait.
inline constexpr int kStrangerSeatMs = 1000;

// Connections of an elastic run's members at its coordinator: each worker and each shard has one for as long as it
// lives. The other connections are for clients that ask for the run's state, and for members whose previous connection
// is not known to be lost yet.
inline constexpr int kMemberConnectionsMax = kWorldSizeMax + kShardCountMax + kStrangerConnectionsMax;

// gRPC streams of one connection. On each of its connections a worker opens one lane and one other call. A client of
// another kind that opens all its lanes on one connection needs a second one for more than seven. Few, because 64
// strangers with 20 streams each took 59 to 119 MiB of a server.
inline constexpr int kStreamsPerConnectionMax = 8;

// A connection must finish its handshake within this time, and a stream must send HELLO: both take milliseconds. A
// slower connection holds memory and descriptors for no use.
inline constexpr int kHelloDeadlineMs = 10'000;

// Descriptors of one connection at a server: gRPC's own, and one by which the connection is watched and cut.
inline constexpr int64_t kDescriptorsPerConnection = 2;

// Descriptors that a process has open in addition to connections: standard streams, epoll, shared memory, files,
// libraries.
inline constexpr int64_t kOtherDescriptorsMax = 64;

// A server or worker raises its soft limit to this, if the hard limit allows: kWorldSizeMax workers of 16 lanes, and
// the members of an elastic run.
inline constexpr int64_t kDescriptorsMax =
    kOtherDescriptorsMax +
    kDescriptorsPerConnection * (int64_t{kWorldSizeMax} * kLanesMax + kMemberConnectionsMax + kStrangerConnectionsMax);

// --memory_limit_gb: a petabyte, far from overflow in bytes.
inline constexpr double kMemoryLimitGbMax = 1e6;

// The length of a line of the server's log, which quotes what others sent, and the number of such lines in a period,
// so that a stranger can fill neither disk nor terminal. kRanksNamedMax: a message names this many ranks of perhaps a
// thousand.
inline constexpr size_t kLogLineBytesMax = 1024;
inline constexpr int64_t kLogRefusalsMax = 20;
inline constexpr int64_t kLogPeriodMs = 10'000;
inline constexpr int kRanksNamedMax = 16;

// The first message of a lane, HELLO: five numbers.
inline constexpr int64_t kHelloBytesMax = 4 << 10;

// The output of a job that the launcher keeps while its terminal is stopped or its pipe is not read: some minutes of a
// chatty job. Further output is dropped.
inline constexpr size_t kLaunchOutputBytesMax = size_t{4} << 20;

// Files of flags: a person writes them by hand. The limits on depth and number end a file that names itself.
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

// Blocks, or groups of short blocks (common/reduce/ring.h, star_pieces.h), that the ring, or the co-located star, has
// in flight at a time: at least two, which keep both directions of a link busy, however many ranks there are.
constexpr int RingBlocksInFlightMax(int world_size) {
  // A block has N - 1 rounds to reduce and as many to gather, each a send and a receive.
  const int operations_per_block = 4 * (world_size > 1 ? world_size - 1 : 1);
  const int blocks = kRingOperationsInFlightMax / operations_per_block;
  return blocks > 2 ? blocks : 2;
}

// The star between ranks (common/reduce/star.h): for each piece that an owner has in flight, the bytes of contributions
// that it takes at a time. A process has as many on their way as contributions, and as many again as answers. Two
// chunks of 128 KiB keep a link busy while the owner adds; more would only queue in the network, where those of several
// ranks meet at one owner. Small chunks are not held back: their cost is in the messages, not in the bytes. All pieces
// in flight then have 6 chunks of memory for sums (768 KiB), which fit a core's L2 cache. With two pieces 4 chunks each
// of contributions and of answers are on their way.
inline constexpr int64_t kStarWindowBytes = 256 << 10;

// Segments of a long control message (a broadcast, a rank's optimizer state) that a sender may have sent before the
// receiver has taken them: one travels while the one before it is taken. A transport may have to keep them.
inline constexpr int kSegmentsInFlightMax = 2;

// Sums that one process has begun in a group (worker/python/group.h) and not awaited. A training step has one for each
// bucket, and begins no step before it has the sums of the last one.
inline constexpr int64_t kReductionsMax = 1000;

// One text of a collective: a rank's agreement, its report of a check, or rank 0's verdict. They have some KiB. The
// length comes from another process, and is looked at before memory is taken.
inline constexpr int64_t kCollectiveTextBytesMax = 1 << 20;

// How long ranks other than 0 wait beyond the deadline of a meeting or of a collective: rank 0 can tell which rank is
// missing, another rank can only tell that rank 0 is late. In this time the message of rank 0, the better one, arrives
// before another rank makes its own.
inline constexpr int kVerdictGraceMs = 2000;

// TCP between ranks (transport/tcp_*).

// One Poll reads at most this many bytes, and sends at most as many. That is some 150 us of copying, for which a Submit
// of the trainer may have to wait. All streams that one Poll serves share the bytes equally.
inline constexpr int64_t kTcpPollBytesMax = 1 << 20;
inline constexpr int kTcpStreamsPerPollMax = 16;

// The control messages that a correct rank may send before they are received: segments, a sum's values, and a text.
inline constexpr int64_t kTcpControlBytesMax =
    kSegmentsInFlightMax *
        (kBroadcastSegmentBytes > kTransferSegmentBytes ? kBroadcastSegmentBytes : kTransferSegmentBytes) +
    2 * kSumValuesMax * static_cast<int64_t>(sizeof(double)) + kCollectiveTextBytesMax;

// A kept message counts this many bytes in addition to its own: about the size of its bookkeeping. So empty messages
// are bounded too.
inline constexpr int64_t kTcpKeptMessageBytes = 128;

// Notices of one rank that wait to be taken. A rank takes one in each round, so only a process that was stopped finds
// so many; further ones wait in the kernel.
inline constexpr int kTcpNoticesKeptMax = 64;

// Notices that wait to be sent to one rank, which reads no notices: it is stopped, or does nothing but ask. Further
// notices are dropped. A job's own are few: the progress four times a second, and an answer to each question.
inline constexpr size_t kTcpNoticesUnsentMax = 256;

// How long the loss of a connection waits for earlier messages of the lost rank: the other connection to that rank may
// still carry its reason, and is closed at the same time if the process has ended. And how long at most until that
// notice has been taken.
inline constexpr int kTcpLossGraceMs = 250;
inline constexpr int kTcpLastNoticeMs = 1000;

// How long a rank that ends stays until the other hosts have acknowledged its reason: twice the time after which the
// kernel repeats what a network has lost.
inline constexpr int kTcpLastWordsMs = 500;

// A connection without traffic is probed after this time and then as often.
inline constexpr int kTcpKeepaliveSeconds = 5;

// How long a host may acknowledge nothing, or its process read nothing while data waits for it, before the connection
// is lost. The deadline of an exchange decides; these are the least and the most.
inline constexpr int kTcpSilenceMsMin = 20'000;
inline constexpr int kTcpSilenceMsMax = 15 * 60 * 1000;

// How often a rank dials a rendezvous at which rank 0 does not listen yet, and how long one attempt may take: a host
// that drops packets must be reported before rank 0 reports all ranks that wait for it.
inline constexpr int kTcpRedialMs = 100;
inline constexpr int kTcpDialMs = 10'000;

// The longest message before a connection is authenticated: the hello of the rank that dials (tcp_handshake.h).
// Afterwards, rank 0's table has an address for each rank.
inline constexpr size_t kTcpHelloBytesMax = 512;
inline constexpr size_t kTcpAddressBytesMax = 95;
inline constexpr size_t kTcpTableBytesMax = kWorldSizeMax * (kTcpAddressBytesMax + 1);

}  // namespace starring

#endif  // STARRING_COMMON_BASE_LIMITS_H_
