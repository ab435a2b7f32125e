#include "worker/options/worker_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/flags/command_line.h"
#include "common/host/machine_limits.h"
#include "common/job/cells.h"
#include "common/job/leaf_shares.h"
#include "common/network/address.h"
#include "common/security/security_flags.h"

namespace starring {
namespace {

// CheckServers or CheckRendezvous has parsed the address, so it has a port after its last colon.
bool IsLoopback(const std::string& address) { return IsLoopbackHost(address.substr(0, address.rfind(':'))); }

absl::Status ResolveOptimizer(OptimizerConfig& optimizer) {
  const bool sgd = optimizer.kind == OptimizerKind::kSgd;
  // The update computes in float32. Ranks, checkpoints and the record compare the numbers that it uses.
  const auto round = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  // AdamW has no momentum. With 0 the comparison of ranks does not depend on a flag without effect.
  optimizer.momentum = sgd ? round(optimizer.momentum) : 0;
  optimizer.weight_decay = round(optimizer.weight_decay);
  optimizer.beta1 = round(optimizer.beta1);
  optimizer.beta2 = round(optimizer.beta2);
  optimizer.epsilon = round(optimizer.epsilon);
  if (!sgd && optimizer.nesterov)
    return RefuseFlag("nesterov", "true", "--optimizer=adamw has no momentum to look ahead with");
  return ValidateOptimizer(optimizer);
}

absl::Status CheckServers(const std::vector<std::string>& servers) {
  if (servers.size() > kShardCountMax) {
    return RefuseFlag("servers", absl::StrCat(servers.size(), " addresses"),
                      absl::StrCat("at most ", kShardCountMax, " servers"));
  }
  for (const std::string& server : servers) {
    ASSIGN_OR_RETURN(const HostPort host_port, ParseHostPort(server), "--servers");
    if (host_port.port == 0)
      return RefuseFlag("servers", server, "no server listens on port 0: give the one it prints");
  }
  return absl::OkStatus();
}

// Over TCP the ranks find each other by these flags alone. A job in which each worker took itself for the only one
// would train that many models.
absl::Status CheckRendezvous(const LauncherEnvironment& launcher, const WorkerOptions& options) {
  if (options.rendezvous.empty()) {
    return RefuseFlag("transport", "tcp",
                      "it needs --rendezvous=host:port, where rank 0 listens (deploy/launch gives it)");
  }
  RETURN_IF_ERROR(ParseHostPort(options.rendezvous).status(), "--rendezvous");
  if (launcher.launcher != Launcher::kNone) return absl::OkStatus();
  constexpr absl::string_view kNoLauncher = "no launcher says which of how many workers this one is: over tcp ";
  if (options.asked.world_size == 0) {
    return RefuseFlag("world_size", "0", absl::StrCat(kNoLauncher, "give every worker the number of all"));
  }
  if (options.asked.rank < 0 && options.world_size > 1) {
    return RefuseFlag("rank", "-1",
                      absl::StrCat(kNoLauncher, "give each worker a number, from 0 to ", options.world_size - 1));
  }
  return absl::OkStatus();
}

// How processes that use the transport find each other.
Contact ContactOver(TransportKind transport) { return CellOf({.transport = transport}).contact; }

absl::Status RefuseAsServerless(const WorkerOptions& options, absl::string_view flag, absl::string_view value) {
  return RefuseFlag(flag, value,
                    absl::StrCat("--sync=", SyncName(options.sync), " has no servers: drop one of the two"));
}

// Servers that meet the workers are no addresses: they register at the rendezvous, as the workers do.
absl::Status CheckServerRanks(const WorkerOptions& options) {
  const Contact contact = ContactOver(options.transport);
  if (contact == Contact::kRendezvous && !options.servers.empty()) {
    return RefuseFlag("servers", absl::StrJoin(options.servers, ","),
                      "over tcp the servers meet the workers at --rendezvous: give their number, --server_ranks, or "
                      "--transport=grpc");
  }
  if (options.server_ranks == 0) return absl::OkStatus();
  const std::string count = absl::StrCat(options.server_ranks);
  if (!MayHaveServers(options.sync)) return RefuseAsServerless(options, "server_ranks", count);
  if (contact != Contact::kRendezvous) {
    return RefuseFlag(
        "server_ranks", count,
        absl::StrCat("over --transport=", TransportName(options.transport),
                     contact == Contact::kServers ? " the workers dial the addresses of --servers: drop one of the two"
                                                  : " the ranks own the parameters: drop it, or give --transport=tcp"));
  }
  if (options.world_size + options.server_ranks > kWorldSizeMax) {
    return RefuseFlag("server_ranks", count,
                      absl::StrCat("with ", options.world_size, " workers there are over ", kWorldSizeMax,
                                   " processes: take fewer servers"));
  }
  return absl::OkStatus();
}

// Whether --transport, --servers and --rendezvous go together, and with the resolved --sync.
absl::Status CheckTransport(const LauncherEnvironment& launcher, const WorkerOptions& options) {
  const char* const transport = TransportName(options.transport);
  const Contact contact = ContactOver(options.transport);
  const std::string servers = absl::StrJoin(options.servers, ",");
  if (!options.servers.empty() && !MayHaveServers(options.sync)) return RefuseAsServerless(options, "servers", servers);
  if (!options.rendezvous.empty() && contact != Contact::kRendezvous) {
    return RefuseFlag("rendezvous", options.rendezvous,
                      absl::StrCat("--transport=", transport, " has no rendezvous: drop it, or give --transport=tcp"));
  }
  RETURN_IF_ERROR(CheckServerRanks(options));
  if (FindCell({.sync = options.sync, .transport = options.transport}) == nullptr) {
    return RefuseFlag("transport", transport, WhyNotOver(options.sync, options.transport));
  }
  if (contact == Contact::kServers) {
    if (!options.servers.empty()) return absl::OkStatus();
    return RefuseFlag("transport", transport, "it needs --servers=host:port,... (deploy/launch starts them)");
  }
  if (!options.servers.empty()) {
    return RefuseFlag(
        "servers", servers,
        absl::StrCat("over --transport=", transport, " the ranks own the parameters: drop one of the two"));
  }
  return contact == Contact::kRendezvous ? CheckRendezvous(launcher, options) : absl::OkStatus();
}

// Workers listen over TCP, and for a check over MPI. A flag without effect would let a firewall's gap be too small.
absl::Status CheckPortRange(const WorkerOptions& options) {
  const Contact contact = options.cell().contact;
  const bool listens = contact == Contact::kRendezvous || (contact == Contact::kMpirun && options.check);
  if (options.port_range.IsAny() || listens) return absl::OkStatus();
  return RefuseFlag("port_range", AbslUnparseFlag(options.port_range),
                    contact == Contact::kMpirun ? "MPI chooses its ports itself: drop it, and limit Open MPI's by "
                                                  "OMPI_MCA_btl_tcp_port_min_v4 and OMPI_MCA_btl_tcp_port_range_v4"
                                                : absl::StrCat(CellFlags(options.cell()),
                                                               " has no workers that listen: drop it, or give it to "
                                                               "the servers"));
}

// The transport of a job that exchanges: as asked, or as its processes find each other.
TransportKind UsualTransport(const WorkerOptions& options) {
  const Contact contact = !options.servers.empty()      ? Contact::kServers
                          : !options.rendezvous.empty() ? Contact::kRendezvous
                                                        : Contact::kMpirun;
  return options.asked.transport.value_or(CellOf({.contact = contact}).transport);
}

absl::Status ResolveTransport(const LauncherEnvironment& launcher, WorkerOptions& options) {
  const std::optional<TransportKind> asked = options.asked.transport;
  if (!CellOf({.sync = options.sync}).Exchanges()) {
    if (asked.has_value()) return RefuseFlag("transport", TransportName(*asked), WhyNotOver(options.sync, *asked));
    if (!options.rendezvous.empty()) {
      const TransportKind transport = CellOf({.contact = Contact::kRendezvous}).transport;
      return RefuseFlag("rendezvous", options.rendezvous, WhyNotOver(options.sync, transport));
    }
    return CheckTransport(launcher, options);
  }
  options.transport = UsualTransport(options);
  // A process that no launcher has started would be a star of one, which is hardly meant.
  if (MayHaveServers(options.sync) && options.UsesMpi() && !asked.has_value() && launcher.launcher == Launcher::kNone) {
    return RefuseFlag("sync", SyncName(options.sync),
                      "it needs --servers=host:port,... (deploy/launch starts them), or mpirun or --rendezvous for a "
                      "star whose ranks own the parameters");
  }
  return CheckTransport(launcher, options);
}

// How many leaves the sum of a step has. Micro-batches imply tree order; any other order would depend on the workers.
absl::Status ResolveMicroBatches(const ParsedFlags& flags, WorkerOptions& options) {
  // The worker that computes a leaf of an elastic run changes, and the bits must not.
  if (options.elastic && options.asked.micro_batches == 0) options.asked.micro_batches = std::nullopt;
  options.micro_batches = options.asked.micro_batches.value_or(AutoMicroBatches(options.global_batch));
  if (options.micro_batches == 0) return absl::OkStatus();
  const std::string value = absl::StrCat(options.micro_batches);
  if (options.micro_batches > options.global_batch) {
    return RefuseFlag("micro_batches", value,
                      absl::StrCat("--global_batch=", options.global_batch, " has not as many samples: give fewer"));
  }
  if (options.device == DeviceKind::kCuda) {
    return RefuseFlag("micro_batches", value, "--device=cuda computes a step's batch at once: give --device=cpu");
  }
  // The default gives way to the tree. A person who asks for the chain expects its bits.
  if (flags.given.contains("sum_order") && options.sum_order == SumOrder::kChain) {
    return RefuseFlag(
        "sum_order", "chain",
        absl::StrCat("--micro_batches=", value, " adds as a tree",
                     options.elastic ? ", and --elastic needs it: drop --sum_order" : ": drop one of the two"));
  }
  options.sum_order = SumOrder::kTree;
  return absl::OkStatus();
}

// The coordinator decides which workers take part, and where the servers are.
absl::Status ResolveElastic(WorkerOptions& options) {
  const WorkerOptions::Asked& asked = options.asked;
  if (options.coordinator.empty()) {
    return RefuseFlag("elastic", "true", "it needs --coordinator=host:port, where shard 0 listens");
  }
  RETURN_IF_ERROR(ParseHostPort(options.coordinator).status(), "--coordinator");
  const Cell& cell = CellOf({.may = Cell::kElastic});
  if (asked.sync.has_value() && *asked.sync != cell.sync) {
    return RefuseFlag(
        "elastic", "true",
        absl::StrCat("--sync=", SyncName(*asked.sync), " has a fixed set of ranks: give --sync=", SyncName(cell.sync)));
  }
  if (asked.transport.has_value() && *asked.transport != cell.transport) {
    return RefuseFlag("elastic", "true",
                      absl::StrCat("it needs servers that are reached by --transport=", TransportName(cell.transport)));
  }
  if (!options.servers.empty() || asked.world_size > 0) {
    return RefuseFlag("elastic", "true",
                      "number of workers and servers come from the coordinator: drop --world_size and --servers");
  }
  if (options.save_best || options.early_stop > 0) {
    return RefuseFlag(options.save_best ? "save_best" : "early_stop",
                      options.save_best ? "true" : absl::StrCat(options.early_stop),
                      "an elastic run saves and ends at snapshots, not at epochs: drop it, or --elastic");
  }
  options.rank = std::max(asked.rank, 0);  // until a generation says more
  options.sync = cell.sync;
  options.transport = cell.transport;
  options.same_host = asked.same_host.value_or(SameHost::kSharedMemory);
  options.servers = {options.coordinator};  // until a generation says more
  return absl::OkStatus();
}

// A worker that does not know its launcher would train alone, and so would each of the others.
absl::Status CheckLauncher(const LauncherEnvironment& launcher, const WorkerOptions::Asked& asked) {
  const bool is_alone = asked.sync.has_value() && !CellOf({.sync = *asked.sync}).Exchanges();
  if (launcher.foreign.empty() || is_alone || (asked.rank >= 0 && asked.world_size > 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the environment has ", launcher.foreign,
      ", so this process is one of several, and this worker does not read those variables: give --rank, --world_size "
      "and --rendezvous or --servers, give --sync=local to train alone, or unset them"));
}

// Whether there are servers whose addresses the workers dial.
bool DialsServers(const WorkerOptions& options) {
  const std::optional<TransportKind> asked = options.asked.transport;
  return !options.servers.empty() || (asked.has_value() && ContactOver(*asked) == Contact::kServers);
}

// The topology where --sync does not say more. With other ranks it is the first that may do what the flags ask for.
Sync UsualSync(const LauncherEnvironment& launcher, const WorkerOptions& options) {
  const WorkerOptions::Asked& asked = options.asked;
  if (DialsServers(options) || options.server_ranks > 0) return CellOf({.server_count = 1}).sync;
  const bool has_peers = launcher.world_size > 1 || !options.rendezvous.empty() || asked.transport.has_value();
  if (!has_peers) return CellOf({.contact = Contact::kNone}).sync;
  CellPattern wanted = {.server_count = 0, .transport = UsualTransport(options), .may = Cell::kAutoSync};
  if (options.sum_order == SumOrder::kTree) wanted.may |= Cell::kTree;
  if (asked.same_host != SameHost::kSocket) wanted.same_host = asked.same_host;
  return CellOf(wanted).sync;
}

absl::Status CheckSumOrder(const WorkerOptions& options) {
  if (options.sum_order != SumOrder::kTree || FindCell({.sync = options.sync, .may = Cell::kTree}) != nullptr) {
    return absl::OkStatus();
  }
  const Sync other = CellOf({.may = Cell::kTree | Cell::kAutoSync}).sync;
  const std::string why =
      absl::StrCat("--sync=", SyncName(options.sync), " ", WhyNot(CellOf({.sync = options.sync}), Cell::kTree),
                   ": give --sync=", SyncName(other), ", or ");
  if (options.micro_batches == 0) return RefuseFlag("sum_order", "tree", absl::StrCat(why, "--sum_order=chain"));
  return RefuseFlag("micro_batches", absl::StrCat(options.micro_batches), absl::StrCat(why, "no --micro_batches"));
}

absl::Status CheckMpi(const WorkerOptions& options) {
  if (!options.UsesMpi() && options.mpi != "auto") {
    return RefuseFlag("mpi", options.mpi,
                      absl::StrCat("--transport=", TransportName(options.transport), " uses no MPI: drop it"));
  }
  if (options.mpi != "auto" && options.mpi != "openmpi" && options.mpi != "mpich" &&
      !absl::StrContains(options.mpi, '/')) {
    return RefuseFlag("mpi", options.mpi, "auto, openmpi, mpich, or the path of a library, which has a slash");
  }
  return absl::OkStatus();
}

// Which worker this process is, of how many, and how they exchange gradients.
absl::Status ResolveTopology(const LauncherEnvironment& launcher, WorkerOptions& options) {
  const WorkerOptions::Asked& asked = options.asked;
  if (options.elastic) {
    RETURN_IF_ERROR(ResolveElastic(options));
    return CheckMpi(options);
  }
  if (!options.coordinator.empty()) {
    return RefuseFlag("coordinator", options.coordinator, "only an elastic run has one: drop it, or --elastic=false");
  }
  RETURN_IF_ERROR(CheckLauncher(launcher, asked));
  options.sync = asked.sync.value_or(UsualSync(launcher, options));
  const bool has_servers = DialsServers(options) || options.server_ranks > 0;
  options.same_host = asked.same_host.value_or(has_servers ? SameHost::kSharedMemory : SameHost::kSocket);
  options.rank = asked.rank >= 0 ? asked.rank : launcher.rank;
  options.world_size = asked.world_size > 0 ? asked.world_size : launcher.world_size;
  if (options.world_size > kWorldSizeMax) {
    return RefuseFlag("world_size", absl::StrCat(options.world_size),
                      absl::StrCat("at most ", kWorldSizeMax, " workers"));
  }
  if (options.rank >= options.world_size) {
    return RefuseFlag("rank", absl::StrCat(options.rank),
                      absl::StrCat("ranks count from 0 to world_size - 1, and --world_size is ", options.world_size));
  }
  if (options.micro_batches > 0 && options.world_size > options.micro_batches) {
    return RefuseFlag("micro_batches", absl::StrCat(options.micro_batches),
                      absl::StrCat("each of ", options.world_size,
                                   " workers computes one at least: give more, or "
                                   "start fewer workers"));
  }
  RETURN_IF_ERROR(CheckSumOrder(options));
  RETURN_IF_ERROR(ResolveTransport(launcher, options));
  RETURN_IF_ERROR(CheckMpi(options));
  if (!options.servers.empty()) return CheckServers(options.servers);
  if (!options.cell().Exchanges() && options.world_size > 1) {
    return RefuseFlag("sync", NameOf(kSyncs, asked.sync),
                      absl::StrCat("one process cannot be one of ", options.world_size,
                                   " workers: give --servers or --rendezvous, or start with mpirun for the ring"));
  }
  // MPI numbers the processes itself. The exchange would refuse another number too, but only after the data has been
  // read.
  if (options.UsesMpi() && (options.rank != launcher.rank || options.world_size != launcher.world_size)) {
    return RefuseFlag("rank", absl::StrCat(asked.rank, "\" of \"", asked.world_size),
                      absl::StrCat("the launcher says rank ", launcher.rank, " of ", launcher.world_size,
                                   ": over MPI mpirun numbers the workers, drop --rank and --world_size"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameHost(const WorkerOptions& options) {
  const Cell& cell = options.cell();
  const std::optional<SameHost> asked = options.asked.same_host;
  if (!asked.has_value() || asked == SameHost::kSocket || !cell.Exchanges()) return absl::OkStatus();
  const bool on_gpus = asked == SameHost::kGpuMemory;
  if (on_gpus && options.device == DeviceKind::kCpu) {
    return RefuseFlag("same_host", "gpu_memory", "--device=cpu computes on no GPU: drop one of the two");
  }
  if (cell.same_host == *asked) {
    if (options.cuda_aware_mpi == CudaAwareMpi::kOff || cell.placement == Placement::kServers) return absl::OkStatus();
    return RefuseFlag("cuda_aware_mpi", NameOf(kCudaAwareMpis, options.cuda_aware_mpi),
                      absl::StrCat("--same_host=", NameOf(kSameHosts, asked), " is memory of the ",
                                   on_gpus ? "GPUs" : "host", ": drop one of the two"));
  }
  const Cell& other = CellOf({.server_count = 0, .same_host = asked});
  const std::string why =
      on_gpus && cell.placement == Placement::kServers
          ? "servers have no GPU: leave out --servers and --server_ranks, or drop it"
          : absl::StrCat("--sync=", SyncName(cell.sync), on_gpus ? " does not go through it" : " sends messages",
                         ": drop it, or give --sync=", SyncName(other.sync));
  return RefuseFlag("same_host", NameOf(kSameHosts, asked), why);
}

absl::Status CheckGpuWaits(const WorkerOptions& options) {
  if (options.gpu_waits == GpuWaits::kHost || options.same_host == SameHost::kGpuMemory) return absl::OkStatus();
  return RefuseFlag("gpu_waits", "graph",
                    "it is for ranks that map each other's GPU memory: give --same_host=gpu_memory too, or drop it");
}

// Resolves the protection of the connections to the servers, or between the ranks.
absl::Status ResolveSecurity(const LauncherEnvironment& launcher, WorkerOptions& options) {
  if (options.run_id.empty()) options.run_id = launcher.run_id;
  if (options.run_id.size() > kRunIdBytesMax) {
    return RefuseFlag("run_id", options.run_id, absl::StrCat("it may have at most ", kRunIdBytesMax, " bytes"));
  }
  const Cell& cell = options.cell();
  // The flags are refused and not ignored, because a person who gives them expects protected connections.
  if (!cell.May(Cell::kSecret)) RETURN_IF_ERROR(RefuseSecurityFlags(options.security_files, CellFlags(cell)));
  if (options.insecure && cell.contact != Contact::kRendezvous) {
    return RefuseFlag("insecure", "true", "only --transport=tcp has a --rendezvous that strangers may reach: drop it");
  }
  if (!cell.May(Cell::kSiteCertificates)) RETURN_IF_ERROR(RefuseSiteCertificates(options.security_files));
  ASSIGN_OR_RETURN(options.security, LoadTransportSecurity(options.security_files));
  return absl::OkStatus();
}

// Small buckets overlap the exchange with computation better. In shared memory a bucket is only a message to every
// server and one back, and on few cores these messages cost more than the overlap gains.
//
// Between hosts each server gets and sends 128 KiB of a bucket at a time. If a slice of parameters is longer, the
// kernel queues only a part of it. The rest may wait behind the gradients of the worker next to the server, and the
// worker that needs the rest is then late in every step. And the last bucket's parameters leave when its gradient has
// arrived, while links are idle. An elastic run does not know its servers yet.
int64_t DefaultBucketBytes(const WorkerOptions& options) {
  // On a GPU a bucket costs two wake-ups, and a kernel that reads another GPU is best when it is long.
  if (options.same_host == SameHost::kGpuMemory) return 4 << 20;
  const bool shares = options.JobIsHere() && options.ServerCount() > 0 && options.same_host == SameHost::kSharedMemory;
  if (options.JobIsHere() || options.ServerCount() == 0 || options.elastic) return shares ? 4 << 20 : 1 << 20;
  return std::min<int64_t>(int64_t{options.ServerCount()} << 17, 1 << 20);
}

// To try several sizes, the owners must take another one in the middle of the run.
absl::Status CheckAutoBuckets(const WorkerOptions& options) {
  const Cell& cell = options.cell();
  if (options.asked.bucket_bytes.has_value() || !cell.Exchanges() || cell.May(Cell::kAutoBuckets)) {
    return absl::OkStatus();
  }
  const std::string other = cell.placement == Placement::kServers
                                ? "leave out --servers and --server_ranks, so that the ranks own the parameters"
                                : absl::StrCat("--sync=", SyncName(CellOf({.may = Cell::kAutoBuckets}).sync));
  return RefuseFlag("bucket_bytes", "auto",
                    absl::StrCat(WhyNot(cell, Cell::kAutoBuckets), ": give a number, or ", other));
}

// The norm is that of the whole gradient, which no process has while each owner updates its part at once.
absl::Status CheckClipNorm(WorkerOptions& options) {
  if (options.optimizer.clip_norm == 0) {
    options.optimizer.clip_norm = 0;  // -0 is another text, and texts are compared when a run is resumed
    return absl::OkStatus();
  }
  const std::string value = absl::StrCat(options.optimizer.clip_norm);
  const Cell& cell = options.cell();
  if (!cell.May(Cell::kWholeGradient)) {
    return RefuseFlag(
        "clip_norm", value,
        absl::StrCat(WhyNot(cell, Cell::kWholeGradient),
                     options.elastic                          ? ": drop --elastic, and"
                     : cell.same_host == SameHost::kGpuMemory ? ": drop --same_host, and"
                     : cell.placement == Placement::kServers  ? ": leave out --servers and --server_ranks, and"
                                                              : ":",
                     " give --sync=ring, or a star whose ranks own the parameters"));
  }
  if (options.cuda_aware_mpi == CudaAwareMpi::kOff) return absl::OkStatus();
  return RefuseFlag("clip_norm", value, "the norm is computed in host memory: give --cuda_aware_mpi=off");
}

absl::Status ResolveCheckpoints(const ParsedFlags& flags, WorkerOptions& options) {
  const std::string& asked = options.asked.checkpoint_dir;
  if (asked != "none") options.checkpoint_dir = asked;
  for (const auto& [flag, is_set] : {std::pair("save_best", options.save_best), std::pair("resume", options.resume)}) {
    if (is_set && options.checkpoint_dir.empty()) return RefuseFlag(flag, "true", "it needs --checkpoint_dir=FOLDER");
  }
  options.saves_by_default = asked.empty();
  options.saves_at_end_alone = options.saves_by_default;
  for (const auto& [flag, value] : {std::pair("checkpoint_every_epochs", options.checkpoint_every_epochs),
                                    std::pair("checkpoint_every_steps", options.checkpoint_every_steps)}) {
    if (!options.saves_by_default || !flags.given.contains(flag)) continue;
    // Rank 0 changes, and each worker that was rank 0 would have a folder of its own, on its host.
    if (options.elastic) {
      return RefuseFlag(flag, absl::StrCat(value), "an elastic run needs --checkpoint_dir=FOLDER for it");
    }
    options.saves_at_end_alone = false;
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const WorkerOptions& options) {
  if (options.isa.has_value() && options.device == DeviceKind::kCuda) {
    return RefuseFlag("isa", InstructionSetName(options.isa), "--device=cuda computes on the GPU: drop one of the two");
  }
  if (options.device != DeviceKind::kCpu) return absl::OkStatus();
  // Ranks that evaluate exchange sums alone, by messages.
  const bool evaluates = !options.evaluate.empty() || !options.predict.empty();
  if (options.sync == Sync::kNccl && !evaluates) {
    return RefuseFlag("sync", "nccl", "NCCL adds in the memory of GPUs: drop --device=cpu, or give --sync=mpi");
  }
  if (options.math != CudaMath::kFp32) {
    return RefuseFlag("math", NameOf(kMaths, options.math), "--device=cpu computes in fp32: drop one of the two");
  }
  if (options.conv == CudaConvolutions::kCudnn) {
    return RefuseFlag("conv", "cudnn", "--device=cpu has no cuDNN: drop one of the two");
  }
  return absl::OkStatus();
}

// Whether a flag means something to ranks that evaluate, and besides their sums exchange nothing.
bool IsForEvaluatingRanks(const std::string& name, const std::string& topic) {
  return topic == "job" || topic == "security" || name == "same_host" || name == "lanes" ||
         name == "exchange_deadline_s" || name == "stall_report_s";
}

// The other data set that the name of --data_dir speaks of, or an empty string.
std::string DatasetNamedBy(absl::string_view data_dir) {
  while (absl::ConsumeSuffix(&data_dir, "/")) {
  }
  absl::ConsumeSuffix(&data_dir, ".gz");
  const std::string last = absl::AsciiStrToLower(data_dir.substr(data_dir.rfind('/') + 1));
  if (absl::EndsWith(last, ".npz")) return "npy";
  for (const char* const name : {"csv", "libsvm"}) {
    if (absl::EndsWith(last, absl::StrCat(".", name))) return name;
  }
  for (const char* const name : {"mnist", "kmnist", "cifar10", "cifar100"}) {
    if (last == name) return name;
  }
  return "";
}

// MNIST's files have the names of Fashion-MNIST's. Without this check a run would train on the one under the name of
// the other.
absl::Status CheckDataDir(const ParsedFlags& flags, const WorkerOptions& options) {
  const DatasetOptions& dataset = options.dataset;
  const std::string named = DatasetNamedBy(dataset.data_dir);
  if (flags.given.contains("dataset") || named.empty()) return absl::OkStatus();
  return RefuseFlag("data_dir", dataset.data_dir,
                    absl::StrCat("without --dataset it would be read as ", dataset.name, ": add --dataset=", named,
                                 ", or --dataset=", dataset.name, " if it is that"));
}

// --evaluate and --predict train nothing, so a flag of the training would be ignored.
absl::Status CheckPrediction(const ParsedFlags& flags, const WorkerOptions& options) {
  if (options.out.empty() == !options.predict.empty()) {
    return RefuseFlag("out", options.out, "--predict=CHECKPOINT --out=FILE.csv, or .npy, belong together");
  }
  if (options.evaluate.empty() && options.predict.empty()) return absl::OkStatus();
  const std::string asks = options.predict.empty() ? "--evaluate" : "--predict";
  if (!options.evaluate.empty() && !options.predict.empty()) {
    return RefuseFlag("evaluate", options.evaluate,
                      "--predict evaluates, too, where there are labels: drop one of the two");
  }
  if (!options.out.empty() && !absl::EndsWith(options.out, ".csv") && !absl::EndsWith(options.out, ".npy")) {
    return RefuseFlag("out", options.out, "expected a name that ends in .csv or .npy");
  }
  if (options.elastic) {
    return absl::InvalidArgumentError(
        absl::StrCat(asks, " is for a fixed number of workers: leave out --elastic and --coordinator"));
  }
  if (!options.predict.empty() && options.cell().Exchanges()) {
    return absl::InvalidArgumentError(
        "--predict is for one process: start it alone, without a launcher; --evaluate takes any number of workers");
  }
  for (const std::string& name : flags.given) {
    const FlagRow* const row = WorkerFlags().Find(name);
    const bool matters = row == nullptr || row->topic == "data" || row->topic == "processor" ||
                         row->topic == "after training" || name == "log_time" || name == "progress" ||
                         (name == "seed" && options.dataset.name == "synthetic") ||
                         (!options.evaluate.empty() && IsForEvaluatingRanks(name, std::string(row->topic)));
    if (matters) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, " is for a training, ", asks, " trains nothing: drop it"));
  }
  return absl::OkStatus();
}

}  // namespace

const char* InstructionSetName(std::optional<InstructionSet> isa) { return NameOf(kInstructionSets, isa); }

bool WorkerOptions::ServersAreHere() const {
  return !servers.empty() && std::all_of(servers.begin(), servers.end(), IsLoopback);
}

const Cell& WorkerOptions::cell() const {
  return CellOf({.sync = sync, .server_count = ServerCount(), .transport = transport, .same_host = same_host});
}

bool WorkerOptions::RanksChoose() const {
  if (asked.sync.has_value() || !RanksAreOwners()) return false;
  return std::ranges::any_of(Cells(), [this](const Cell& other) {
    return other.sync != sync && other.transport == transport && other.May(Cell::kAutoSync) &&
           other.same_host == asked.same_host.value_or(other.same_host);
  });
}

bool WorkerOptions::JobIsHere() const {
  return ServersAreHere() || (cell().contact == Contact::kRendezvous && IsLoopback(rendezvous));
}

const FlagTable& WorkerFlags() {
  // The table points to the defaults, so both live as long as the process.
  static const WorkerOptions defaults;
  static const FlagTable table = MakeFlagTable("worker", "one training process.", worker_flags::kAllRows, &defaults);
  return table;
}

std::vector<std::pair<std::string, std::string>> AgreedWorkerFlags(const WorkerOptions& options) {
  std::vector<std::pair<std::string, std::string>> flags = AgreedFlags(WorkerFlags(), &options);
  // The table knows whether the flag is given, and no default that is an action.
  for (auto& [flag, value] : flags) {
    if (flag != "checkpoint_dir" || !value.empty()) continue;
    value = options.saves_at_end_alone ? "(default, at the end)" : options.saves_by_default ? "(default)" : "none";
  }
  return flags;
}

absl::StatusOr<WorkerOptions> ParseWorkerOptions(int argc, const char* const* argv,
                                                 const LauncherEnvironment& launcher) {
  WorkerOptions options;
  ASSIGN_OR_RETURN(const ParsedFlags flags, ParseFlags(argc, argv, WorkerFlags(), &options, FlagFilePart::kWorker));
  // --elastic=false next to --coordinator is a contradiction, which ResolveTopology refuses.
  if (!options.coordinator.empty() && !flags.given.contains("elastic")) options.elastic = true;
  RETURN_IF_ERROR(ResolveMicroBatches(flags, options));
  // The topology comes first: security and the default size of a bucket depend on it.
  RETURN_IF_ERROR(ResolveTopology(launcher, options));
  RETURN_IF_ERROR(CheckPortRange(options));
  RETURN_IF_ERROR(CheckSameHost(options));
  RETURN_IF_ERROR(CheckGpuWaits(options));
  RETURN_IF_ERROR(ResolveSecurity(launcher, options));
  RETURN_IF_ERROR(CheckAutoBuckets(options));
  const int64_t asked_bytes = options.asked.bucket_bytes.value_or(0);
  options.bucket_bytes = asked_bytes > 0 ? asked_bytes : DefaultBucketBytes(options);
  options.prefetch_depth = options.asked.prefetch_depth;
  // Without a core to spare, the loader's threads would only take turns with the trainer's.
  if (options.prefetch_depth < 0) options.prefetch_depth = CountedCores(launcher.core_limits) > options.threads ? 3 : 0;
  // One flag, --synthetic_size, sets both.
  options.dataset.synthetic_width = options.dataset.synthetic_height;
  options.dataset.seed = options.seed;
  // The rank is added here and not where the port is opened, so that a wrong port is refused before training.
  if (options.metrics_port + options.rank > kPortMax) {
    return RefuseFlag("metrics_port", absl::StrCat(options.metrics_port),
                      absl::StrCat("rank ", options.rank, " would take ", options.metrics_port + options.rank,
                                   ", and ports end at ", kPortMax));
  }
  RETURN_IF_ERROR(ResolveCheckpoints(flags, options));
  RETURN_IF_ERROR(CheckDataDir(flags, options));
  RETURN_IF_ERROR(CheckPrediction(flags, options));
  RETURN_IF_ERROR(CheckDevice(options));
  RETURN_IF_ERROR(CheckClipNorm(options));
  RETURN_IF_ERROR(ResolveOptimizer(options.optimizer));
  if (options.schedule.kind == ScheduleKind::kStep && options.schedule.decay_steps == 0) {
    return RefuseFlag("decay_steps", "0", "--schedule=step needs at least 1");
  }
  return options;
}

}  // namespace starring
