#include "worker/options/worker_options.h"

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/job/cells.h"
#include "common/job/job_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/flags/flag_table_checks.h"
#include "tests/worker/one_flag_changed.h"

namespace starring {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

absl::StatusOr<WorkerOptions> Parse(std::vector<const char*> words, const LauncherEnvironment& launcher = {}) {
  words.insert(words.begin(), "worker");
  return ParseWorkerOptions(static_cast<int>(words.size()), words.data(), launcher);
}

absl::StatusOr<WorkerOptions> ParseWords(const std::vector<std::string>& words) {
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  return Parse(pointers);
}

std::string Refusal(const std::vector<const char*>& words, const LauncherEnvironment& launcher = {}) {
  const auto options = Parse(words, launcher);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

LauncherEnvironment MpirunOf(int rank, int world_size) {
  return {.launcher = Launcher::kOpenMpi, .rank = rank, .world_size = world_size};
}

TEST(WorkerOptionsTest, EveryFlagIsInTheTableAndInTheHelp) { ExpectWholeTable(WorkerFlags()); }

std::string FileText(const char* path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The section "## Flags" of a page.
std::string FlagsSection(const char* path) {
  const std::string text = FileText(path);
  const size_t begin = text.find("\n## Flags\n");
  EXPECT_NE(begin, std::string::npos) << path;
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

// Each `--name` and `--name=value` of the page is a flag, and the value one that it takes. In the first column of a
// table, and at the beginning of a point of a list, the value is the default.
void ExpectFlagsOfTheTable(const std::string& page) {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<absl::string_view> pieces = absl::StrSplit(line, '`');
    for (size_t i = 1; i < pieces.size(); i += 2) {
      absl::string_view word = pieces[i];
      if (!absl::ConsumePrefix(&word, "--") || word.empty()) continue;
      const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (parts[0] == "help" || parts[0] == "flagfile") continue;
      const FlagRow* const row = WorkerFlags().Find(parts[0]);
      ASSERT_NE(row, nullptr) << "no flag --" << parts[0] << " in worker --help: " << line;
      if (parts.size() == 1) continue;
      EXPECT_TRUE(row->limits().Allow(parts[1])) << line;
      if (i == 1 && (absl::StartsWith(line, "| `--") || absl::StartsWith(line, "- `--"))) {
        EXPECT_EQ(row->slot.print(WorkerFlags().defaults), parts[1]) << line;
      }
    }
  }
}

TEST(WorkerOptionsTest, BatchesAreFilledAheadWhereCoresAndQuotaLeaveOne) {
  const auto depth = [](const CoreLimits& limits) {
    const auto options = Parse({}, {.core_limits = limits});
    EXPECT_TRUE(options.ok()) << options.status();
    return options.ok() ? options->prefetch_depth : -1;
  };
  EXPECT_EQ(depth({.cores = 2}), 3);
  EXPECT_EQ(depth({.cores = 1}), 0);
  EXPECT_EQ(depth({.cores = 8, .quota = 1.5}), 0);
  EXPECT_EQ(depth({.cores = 8, .quota = 0.5}), 0);
  EXPECT_EQ(depth({.cores = 8, .quota = 2}), 3);
}

TEST(WorkerOptionsTest, ARangeOfPortsIsForWorkersThatListen) {
  const auto tcp = Parse({"--port_range=7000-7100", "--rendezvous=127.0.0.1:1", "--rank=0", "--world_size=2"});
  ASSERT_TRUE(tcp.ok()) << tcp.status();
  EXPECT_EQ(tcp->port_range.first, 7000);
  EXPECT_EQ(tcp->port_range.last, 7100);
  EXPECT_TRUE(Parse({"--port_range=7000-7100", "--check"}, MpirunOf(0, 2)).ok());
  EXPECT_THAT(Refusal({"--port_range=7000-7100"}, MpirunOf(0, 2)),
              HasSubstr("MPI chooses its ports itself: drop it, and limit Open MPI's by OMPI_MCA_btl_tcp_port_min_v4"));
  EXPECT_THAT(Refusal({"--port_range=7000-7100", "--servers=a:1"}), HasSubstr("has no workers that listen: drop it"));
  EXPECT_THAT(Refusal({"--port_range=7000-7100"}), HasSubstr("has no workers that listen: drop it"));
  EXPECT_THAT(Refusal({"--port_range=7000"}), HasSubstr("it must be: first-last"));
}

TEST(WorkerOptionsTest, ThePagesTellTheFlagsOfTheTable) {
  ExpectFlagsOfTheTable(FlagsSection("README.md"));
  const std::string page = FlagsSection("worker/README.md");
  ExpectFlagsOfTheTable(page);
  for (const FlagRow& row : WorkerFlags().rows) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("\n### ", row.topic, "\n"))) << "of --" << row.name;
  }
}

TEST(WorkerOptionsTest, ThePageAndThePeerHaveTheTable) {
  EXPECT_THAT(FileText("worker/README.md"), HasSubstr(FlagsMarkdown(WorkerFlags())))
      << "bazel run //worker/options:flag_pages -- \"$PWD\" mends it";
  EXPECT_EQ(FileText("bench/ddp/worker_flags.json"), FlagsJson(WorkerFlags()))
      << "bazel run //worker/options:flag_pages -- \"$PWD\" mends it";
  EXPECT_EQ(FileText("deploy/launch/worker_flags.inc"), FlagNames(WorkerFlags()))
      << "bazel run //worker/options:flag_pages -- \"$PWD\" mends it";
}

TEST(WorkerOptionsTest, EveryWholeNumberEndsAtItsLimit) {
  ExpectWholeNumbersEnd(WorkerFlags(), [](const std::string& word) { return Refusal({word.c_str()}); });
}

// The parser knows the choices of the table: none ends in "it must be one of".
TEST(WorkerOptionsTest, EveryChoiceOfTheTableIsRead) {
  for (const FlagRow& row : WorkerFlags().rows) {
    for (const absl::string_view choice : row.limits().choices) {
      if (choice.empty()) continue;
      const std::string word = absl::StrCat("--", row.name, "=", choice);
      EXPECT_THAT(std::string(Parse({word.c_str()}).status().message()), Not(HasSubstr("must be one of"))) << word;
    }
  }
}

TEST(WorkerOptionsTest, NoFlagTrainsLenetOnFashionMnistInOneProcess) {
  const auto options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->sync, Sync::kLocal);
  EXPECT_EQ(options->world_size, 1);
  EXPECT_EQ(options->model, "lenet5");
  EXPECT_EQ(options->dataset.name, "fashion-mnist");
  EXPECT_EQ(options->checkpoint_every_epochs, 5);
  EXPECT_EQ(options->checkpoint_every_steps, 0);
}

TEST(WorkerOptionsTest, AutoChoosesTheTopology) {
  const auto star = Parse({"--servers=a:1,b:2", "--rank=1", "--world_size=2"});
  ASSERT_TRUE(star.ok()) << star.status();
  EXPECT_EQ(star->sync, Sync::kStar);
  EXPECT_EQ(star->rank, 1);
  EXPECT_THAT(star->servers, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(Parse({}, MpirunOf(3, 4))->sync, Sync::kRing);
  EXPECT_EQ(Parse({}, MpirunOf(3, 4))->rank, 3);
  EXPECT_EQ(Parse({}, MpirunOf(0, 1))->sync, Sync::kLocal);
  EXPECT_EQ(Parse({"--servers=a:1"}, MpirunOf(1, 2))->sync, Sync::kStar);
  EXPECT_EQ(Parse({"--sync=mpi"}, MpirunOf(1, 2))->sync, Sync::kMpi);
}

TEST(WorkerOptionsTest, AutoChoosesTheTransport) {
  const auto transport = [](std::vector<const char*> words, const LauncherEnvironment& launcher = {}) {
    const auto options = Parse(std::move(words), launcher);
    EXPECT_TRUE(options.ok()) << options.status();
    return options->transport;
  };
  EXPECT_EQ(transport({}), TransportKind::kNone);
  EXPECT_EQ(transport({"--servers=a:1"}), TransportKind::kGrpc);
  EXPECT_EQ(transport({"--servers=a:1"}, MpirunOf(1, 2)), TransportKind::kGrpc);
  EXPECT_EQ(transport({}, MpirunOf(0, 2)), TransportKind::kMpi);
  EXPECT_EQ(transport({"--sync=star"}, MpirunOf(0, 2)), TransportKind::kMpi);
  EXPECT_EQ(transport({"--sync=mpi"}, MpirunOf(0, 2)), TransportKind::kMpi);
  EXPECT_EQ(transport({"--sync=star", "--transport=mpi"}), TransportKind::kMpi);  // a star of one rank
  EXPECT_EQ(transport({"--transport=mpi"}), TransportKind::kMpi);
  for (const char* const sync : {"--sync=star", "--sync=ring"}) {
    EXPECT_EQ(transport({sync, "--rendezvous=a:1", "--rank=1", "--world_size=2"}), TransportKind::kTcp);
    EXPECT_EQ(transport({sync, "--rendezvous=a:1"}, MpirunOf(1, 2)), TransportKind::kTcp);
    EXPECT_EQ(transport({sync, "--rendezvous=a:1", "--transport=tcp", "--world_size=1"}), TransportKind::kTcp);
  }
  EXPECT_EQ(Parse({"--rendezvous=a:1", "--rank=1", "--world_size=2"})->sync, Sync::kRing);
}

TEST(WorkerOptionsTest, NcclMeetsOverMpiOrTcp) {
  EXPECT_EQ(Parse({"--sync=nccl"}, MpirunOf(1, 2))->transport, TransportKind::kMpi);
  const auto tcp = Parse({"--sync=nccl", "--rendezvous=a:1", "--rank=0", "--world_size=2"});
  EXPECT_EQ(tcp->transport, TransportKind::kTcp);
  EXPECT_FALSE(tcp->RanksAreOwners());
  EXPECT_FALSE(tcp->IsDeterministic());
  EXPECT_THAT(Refusal({"--sync=nccl", "--device=cpu"}), HasSubstr("drop --device=cpu, or give --sync=mpi"));
  EXPECT_TRUE(Parse({"--sync=nccl", "--device=cpu", "--evaluate=saved"}, MpirunOf(1, 2)).ok());
  EXPECT_THAT(Refusal({"--sync=nccl", "--sum_order=tree"}), HasSubstr("leaves the order to NCCL: give --sync=star"));
  EXPECT_THAT(Refusal({"--sync=nccl", "--clip_norm=1"}), HasSubstr("in host memory: give --sync=ring"));
}

TEST(WorkerOptionsTest, WhoOwnsTheParameters) {
  EXPECT_TRUE(Parse({"--sync=star"}, MpirunOf(0, 2))->RanksAreOwners());
  EXPECT_TRUE(Parse({"--sync=ring"}, MpirunOf(0, 2))->RanksAreOwners());
  EXPECT_FALSE(Parse({"--sync=mpi"}, MpirunOf(0, 2))->RanksAreOwners());
  EXPECT_FALSE(Parse({"--servers=a:1"})->RanksAreOwners());
  EXPECT_EQ(Parse({"--sync=star"}, MpirunOf(0, 2))->BucketWorldSize(), 2);
  EXPECT_EQ(Parse({"--sync=mpi"}, MpirunOf(0, 2))->BucketWorldSize(), 2);
  EXPECT_EQ(Parse({"--servers=a:1", "--rank=0", "--world_size=2"})->BucketWorldSize(), 1);
  EXPECT_EQ(Parse({"--rendezvous=a:1", "--rank=0", "--world_size=2", "--server_ranks=3"})->BucketWorldSize(), 1);
  absl::StatusOr<WorkerOptions> elastic = Parse({"--coordinator=a:1"});
  elastic->world_size = 3;  // as of a generation
  EXPECT_EQ(elastic->BucketWorldSize(), 1);
  EXPECT_FALSE(Parse({})->RanksAreOwners());
  EXPECT_FALSE(Parse({"--sync=star"}, MpirunOf(0, 2))->ServersAreHere());
}

// The flags of a job of that cell, and what else is asked of it.
absl::StatusOr<WorkerOptions> ParseCell(const Cell& cell, const std::string& more = "--rank=0") {
  std::vector<std::string> words = {absl::StrCat("--sync=", SyncName(cell.sync)), more};
  if (cell.Exchanges()) words.push_back(absl::StrCat("--transport=", TransportName(cell.transport)));
  words.push_back(absl::StrCat("--same_host=", NameOf(kResolvedSameHosts, cell.same_host)));
  if (cell.contact == Contact::kServers) words.push_back("--servers=a:1");
  if (cell.contact == Contact::kRendezvous) {
    words.insert(words.end(), {"--rendezvous=127.0.0.1:1", "--world_size=2"});
    if (more != "--rank=0") words.push_back("--rank=0");
    if (cell.placement == Placement::kServers) words.push_back("--server_ranks=1");
  }
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  return Parse(pointers, cell.contact == Contact::kMpirun ? MpirunOf(0, 2) : LauncherEnvironment());
}

TEST(WorkerOptionsTest, EachCellOfTheTableIsAJob) {
  for (const Cell& cell : Cells()) {
    const auto options = ParseCell(cell);
    ASSERT_TRUE(options.ok()) << cell.name << ": " << options.status();
    EXPECT_STREQ(options->cell().name, cell.name);
  }
}

// The worker takes a flag if and only if the table says that the cell may.
TEST(WorkerOptionsTest, AFlagIsRefusedWhereTheCellLacksIt) {
  for (const Cell& cell : Cells()) {
    const auto code = [&](const char* flag) { return ParseCell(cell, flag).status().code(); };
    const auto is_taken = [&](const char* flag) {
      EXPECT_TRUE(code(flag) == absl::StatusCode::kOk || code(flag) == absl::StatusCode::kInvalidArgument);
      return code(flag) == absl::StatusCode::kOk;
    };
    EXPECT_EQ(is_taken("--sum_order=tree"), cell.May(Cell::kTree)) << cell.name;
    EXPECT_EQ(is_taken("--micro_batches=8"), cell.May(Cell::kTree)) << cell.name;
    EXPECT_EQ(is_taken("--bucket_bytes=auto"), cell.May(Cell::kAutoBuckets) || !cell.Exchanges()) << cell.name;
    EXPECT_EQ(is_taken("--clip_norm=1"), cell.May(Cell::kWholeGradient)) << cell.name;
    EXPECT_TRUE(is_taken("--check")) << cell.name;
    EXPECT_EQ(code("--job_secret=/nowhere") == absl::StatusCode::kNotFound, cell.May(Cell::kSecret)) << cell.name;
    EXPECT_EQ(absl::StrContains(ParseCell(cell, "--tls_ca=f").status().message(), "without --tls nothing is encrypted"),
              cell.May(Cell::kSiteCertificates))
        << cell.name;
    const std::string sync = absl::StrCat("--sync=", SyncName(cell.sync));
    const std::string transport =
        absl::StrCat("--transport=", cell.Exchanges() ? TransportName(cell.transport) : "auto");
    EXPECT_EQ(Parse({sync.c_str(), transport.c_str(), "--coordinator=a:1"}).ok(), cell.May(Cell::kElastic))
        << cell.name;
  }
}

TEST(WorkerOptionsTest, ServersRefuseToClip) {
  EXPECT_EQ(
      Refusal({"--servers=a:1", "--clip_norm=1"}),
      "flag --clip_norm cannot be \"1\": a server updates a bucket at once, and knows no norm of the others: leave out "
      "--servers and --server_ranks, and give --sync=ring, or a star whose ranks own the parameters");
  EXPECT_THAT(Refusal({"--coordinator=a:1", "--clip_norm=1"}), HasSubstr("drop --elastic, and give --sync=ring"));
  EXPECT_THAT(Refusal({"--sync=ring", "--clip_norm=0.5", "--cuda_aware_mpi=auto"}, MpirunOf(0, 2)),
              HasSubstr("give --cuda_aware_mpi=off"));
  EXPECT_EQ(Parse({"--clip_norm=0.5"})->optimizer.clip_norm, 0.5);
  EXPECT_EQ(Parse({"--servers=a:1", "--clip_norm=0"})->optimizer.clip_norm, 0);
  for (const char* flag : {"--clip_norm=-1", "--clip_norm=nan", "--clip_norm=inf"}) {
    EXPECT_THAT(Refusal({flag}), HasSubstr("clip_norm"));
  }
}

TEST(WorkerOptionsTest, RefusesTransportsThatDoNotFit) {
  EXPECT_THAT(Refusal({"--transport=pigeon"}), HasSubstr("auto, grpc, mpi, tcp"));
  EXPECT_THAT(Refusal({"--servers=a:1", "--transport=mpi"}),
              HasSubstr("over --transport=mpi the ranks own the parameters: drop one of the two"));
  EXPECT_THAT(Refusal({"--sync=star", "--transport=grpc"}), HasSubstr("it needs --servers=host:port"));
  EXPECT_THAT(Refusal({"--sync=ring", "--transport=grpc"}, MpirunOf(0, 2)), HasSubstr("choose mpi or tcp"));
  EXPECT_THAT(Refusal({"--sync=mpi", "--transport=tcp", "--rendezvous=a:1"}), HasSubstr("MPI's own allreduce"));
  EXPECT_THAT(Refusal({"--sync=mpi", "--rendezvous=a:1"}), HasSubstr("MPI's own allreduce"));
  EXPECT_THAT(Refusal({"--sync=ring", "--transport=tcp"}), HasSubstr("it needs --rendezvous=host:port"));
  EXPECT_THAT(Refusal({"--sync=ring", "--transport=mpi", "--rendezvous=a:1"}), HasSubstr("has no rendezvous"));
  EXPECT_THAT(Refusal({"--servers=a:1", "--rendezvous=a:1"}), HasSubstr("has no rendezvous"));
  EXPECT_THAT(Refusal({"--sync=ring", "--rendezvous=nowhere"}), HasSubstr("--rendezvous"));
  EXPECT_THAT(Refusal({"--sync=local", "--transport=mpi"}), HasSubstr("--sync=local exchanges nothing"));
  EXPECT_THAT(Refusal({"--sync=local", "--rendezvous=a:1"}), HasSubstr("--sync=local exchanges nothing"));
  EXPECT_THAT(Refusal({"--transport=grpc"}), HasSubstr("it needs --servers=host:port"));
  EXPECT_THAT(Refusal({"--sync=star", "--rank=1"}, MpirunOf(0, 2)), HasSubstr("the launcher says rank 0 of 2"));
  EXPECT_THAT(Refusal({"--sync=star", "--job_secret=/nowhere"}, MpirunOf(0, 2)),
              HasSubstr("--sync=star --transport=mpi has none: drop it"));
}

TEST(WorkerOptionsTest, ServersOverTcpAreACount) {
  const auto options = Parse({"--server_ranks=2", "--rendezvous=a:1", "--rank=1", "--world_size=3"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->sync, Sync::kStar);
  EXPECT_EQ(options->transport, TransportKind::kTcp);
  EXPECT_EQ(options->ServerCount(), 2);
  EXPECT_FALSE(options->RanksAreOwners());
  EXPECT_THAT(Refusal({"--server_ranks=2", "--sync=ring", "--rendezvous=a:1", "--world_size=1"}),
              HasSubstr("--sync=ring has no servers"));
  EXPECT_THAT(Refusal({"--server_ranks=2", "--sync=star", "--transport=mpi"}), HasSubstr("or give --transport=tcp"));
  EXPECT_THAT(Refusal({"--server_ranks=2", "--servers=a:1"}), HasSubstr("the addresses of --servers"));
  EXPECT_THAT(Refusal({"--servers=a:1", "--transport=tcp", "--rendezvous=a:1", "--world_size=1"}),
              HasSubstr("give their number, --server_ranks"));
  EXPECT_THAT(Refusal({"--server_ranks=2", "--rendezvous=a:1", "--rank=0", "--world_size=1023"}),
              HasSubstr("over 1024 processes"));
}

TEST(WorkerOptionsTest, OverTcpEachWorkerIsToldItsNumber) {
  const auto second = Parse({"--sync=star", "--rendezvous=a:1", "--rank=1", "--world_size=2", "--run_id=r"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->rank, 1);
  EXPECT_EQ(second->world_size, 2);
  EXPECT_TRUE(second->RanksAreOwners());
  EXPECT_FALSE(second->UsesMpi());
  const auto by_launcher = Parse({"--rendezvous=a:1"}, MpirunOf(1, 3));
  ASSERT_TRUE(by_launcher.ok()) << by_launcher.status();
  EXPECT_EQ(by_launcher->rank, 1);
  EXPECT_EQ(by_launcher->world_size, 3);
  EXPECT_TRUE(Parse({"--rendezvous=a:1", "--world_size=1"}).ok());
  for (const char* const sync : {"--sync=star", "--sync=ring"}) {
    EXPECT_THAT(Refusal({sync, "--rendezvous=a:1"}),
                HasSubstr("flag --world_size cannot be \"0\": no launcher says which of how many workers this one is"));
    EXPECT_THAT(
        Refusal({sync, "--rendezvous=a:1", "--world_size=3"}),
        HasSubstr("flag --rank cannot be \"-1\": no launcher says which of how many workers this one is: over tcp "
                  "give each worker a number, from 0 to 2"));
  }
}

TEST(WorkerOptionsTest, OverTcpTheSecretAdmitsAndItsCertificateEncrypts) {
  const auto refusal = [](const char* more) {
    return Refusal({"--rendezvous=a:1", "--rank=0", "--world_size=2", more});
  };
  for (const char* const site : {"--tls_ca=f", "--tls_certificate=f", "--tls_key=f"}) {
    EXPECT_THAT(refusal(site), HasSubstr("is for connections by gRPC; over TCP --tls takes the certificate in"));
  }
  EXPECT_THAT(refusal("--tls"), HasSubstr("it needs --job_secret=FILE"));
  EXPECT_EQ(Parse({"--rendezvous=a:1", "--rank=0", "--world_size=2", "--job_secret=/nowhere", "--tls"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(Parse({"--rendezvous=a:1", "--rank=0", "--world_size=2", "--insecure"})->insecure);
  EXPECT_THAT(Refusal({"--insecure"}), HasSubstr("only --transport=tcp has a --rendezvous"));
  EXPECT_THAT(Refusal({"--insecure", "--servers=a:1"}), HasSubstr("only --transport=tcp has a --rendezvous"));
  EXPECT_THAT(Refusal({"--insecure"}, MpirunOf(0, 2)), HasSubstr("only --transport=tcp has a --rendezvous"));
}

TEST(WorkerOptionsTest, AStarAddsInEitherOrder) {
  for (const SumOrder order : {SumOrder::kChain, SumOrder::kTree}) {
    const char* const flag = order == SumOrder::kTree ? "--sum_order=tree" : "--sum_order=chain";
    EXPECT_EQ(Parse({flag})->sum_order, order);
    EXPECT_EQ(Parse({"--servers=a:1", flag})->sum_order, order);
    EXPECT_EQ(Parse({"--sync=star", flag}, MpirunOf(0, 2))->sum_order, order);
    EXPECT_EQ(Parse({"--sync=star", "--rendezvous=a:1", "--rank=0", "--world_size=2", flag})->sum_order, order);
  }
  EXPECT_EQ(Parse({})->sum_order, SumOrder::kChain);
  EXPECT_THAT(Refusal({"--sync=ring", "--sum_order=tree"}), HasSubstr("which is a chain: give --sync=star"));
  EXPECT_EQ(Parse({"--sum_order=tree"}, MpirunOf(0, 2))->sync, Sync::kStar);
  EXPECT_THAT(Refusal({"--sync=mpi", "--sum_order=tree"}), HasSubstr("leaves the order to MPI: give --sync=star"));
}

TEST(WorkerOptionsTest, MicroBatchesBringTheTreeAlong) {
  EXPECT_EQ(Parse({})->micro_batches, 0);
  EXPECT_EQ(Parse({"--micro_batches=0"})->sum_order, SumOrder::kChain);
  const auto local = Parse({"--micro_batches=5"});
  EXPECT_EQ(local->micro_batches, 5);
  EXPECT_EQ(local->sum_order, SumOrder::kTree);
  EXPECT_EQ(Parse({"--micro_batches=auto", "--global_batch=128"})->micro_batches, 8);
  EXPECT_EQ(Parse({"--micro_batches=auto", "--global_batch=128", "--servers=a:1", "--world_size=3"})->micro_batches, 8)
      << "the number of workers does not count";
  EXPECT_EQ(Parse({"--micro_batches=4", "--servers=a:1", "--world_size=4"})->sync, Sync::kStar);
  EXPECT_THAT(Refusal({"--micro_batches=4", "--servers=a:1", "--world_size=5"}),
              HasSubstr("each of 5 workers computes one at least"));
  EXPECT_THAT(Refusal({"--micro_batches=65"}), HasSubstr("--global_batch=64 has not as many samples"));
  EXPECT_THAT(Refusal({"--micro_batches=8", "--device=cuda"}), HasSubstr("give --device=cpu"));
  EXPECT_THAT(Refusal({"--micro_batches=8", "--sync=ring"}, MpirunOf(0, 2)),
              HasSubstr("which is a chain: give --sync=star, or no --micro_batches"));
  EXPECT_THAT(Refusal({"--micro_batches=1025", "--global_batch=2000"}), HasSubstr("1024"));
  EXPECT_EQ(Parse({"--micro_batches=0", "--sum_order=chain"})->sum_order, SumOrder::kChain);
  EXPECT_EQ(Parse({"--micro_batches=5", "--sum_order=tree"})->sum_order, SumOrder::kTree);
  EXPECT_THAT(Refusal({"--micro_batches=5", "--sum_order=chain"}),
              HasSubstr("flag --sum_order cannot be \"chain\": --micro_batches=5 adds as a tree: drop one of the two"));
}

TEST(WorkerOptionsTest, ACoordinatorMakesTheRunElastic) {
  EXPECT_FALSE(Parse({})->elastic);
  for (const char* const more : {"--elastic", "--sync=star", "--transport=grpc", "--rank=0"}) {
    const auto options = Parse({"--coordinator=a:1", more});
    ASSERT_TRUE(options.ok()) << options.status();
    EXPECT_TRUE(options->elastic) << more;
    EXPECT_EQ(options->sync, Sync::kStar) << more;
    EXPECT_EQ(options->transport, TransportKind::kGrpc) << more;
    EXPECT_THAT(options->servers, ElementsAre("a:1")) << more;
  }
  // The workers' shares change, so every batch is cut, also without a number.
  EXPECT_EQ(Parse({"--coordinator=a:1"})->micro_batches, 4);
  EXPECT_EQ(Parse({"--coordinator=a:1"})->sum_order, SumOrder::kTree);
  EXPECT_EQ(Parse({"--coordinator=a:1", "--global_batch=128"})->micro_batches, 8);
  EXPECT_EQ(Parse({"--coordinator=a:1", "--micro_batches=0"})->micro_batches, 4);
  EXPECT_EQ(Parse({"--coordinator=a:1", "--micro_batches=2"})->micro_batches, 2);
  EXPECT_EQ(Parse({"--coordinator=a:1", "--rank=3"})->rank, 3);
}

TEST(WorkerOptionsTest, RefusesWhatAnElasticRunHasNot) {
  EXPECT_THAT(Refusal({"--elastic"}), HasSubstr("it needs --coordinator=host:port, where shard 0 listens"));
  EXPECT_THAT(Refusal({"--coordinator=nowhere"}), HasSubstr("--coordinator: "));
  const auto refusal = [](const char* more) { return Refusal({"--coordinator=a:1", more}); };
  for (const char* const more : {"--elastic=false", "--noelastic"}) {
    EXPECT_THAT(refusal(more),
                HasSubstr("flag --coordinator cannot be \"a:1\": only an elastic run has one: drop it, or "
                          "--elastic=false"));
  }
  EXPECT_THAT(refusal("--sync=ring"), HasSubstr("--sync=ring has a fixed set of ranks: give --sync=star"));
  EXPECT_THAT(refusal("--sync=local"), HasSubstr("--sync=local has a fixed set of ranks: give --sync=star"));
  EXPECT_THAT(refusal("--transport=tcp"), HasSubstr("it needs servers that are reached by --transport=grpc"));
  for (const char* const more : {"--servers=b:1", "--world_size=2"}) {
    EXPECT_THAT(refusal(more), HasSubstr("come from the coordinator: drop --world_size and --servers"));
  }
  EXPECT_THAT(refusal("--sum_order=chain"),
              HasSubstr("--micro_batches=4 adds as a tree, and --elastic needs it: drop --sum_order"));
  EXPECT_THAT(refusal("--device=cuda"), HasSubstr("flag --micro_batches cannot be \"4\": --device=cuda computes"));
}

TEST(WorkerOptionsTest, SameHost) {
  EXPECT_EQ(Parse({"--servers=a:1"})->same_host, SameHost::kSharedMemory);
  EXPECT_EQ(Parse({"--servers=a:1", "--same_host=socket"})->same_host, SameHost::kSocket);
  EXPECT_THAT(Refusal({"--servers=a:1", "--same_host=pigeon"}), HasSubstr("shared_memory, socket"));
  // Without servers it is a way of its own, which a person asks for.
  EXPECT_EQ(Parse({"--sync=star"}, MpirunOf(0, 2))->same_host, SameHost::kSocket);
  const auto shared = Parse({"--same_host=shared_memory"}, MpirunOf(0, 2));
  EXPECT_EQ(shared->sync, Sync::kStar);
  EXPECT_EQ(shared->same_host, SameHost::kSharedMemory);
  EXPECT_FALSE(shared->RanksChoose());
  EXPECT_THAT(Refusal({"--same_host=shared_memory", "--cuda_aware_mpi=auto"}, MpirunOf(0, 2)),
              HasSubstr("--same_host=shared_memory is memory of the host: drop one of the two"));
  EXPECT_EQ(Parse({"--same_host=shared_memory", "--sync=ring"}, MpirunOf(0, 2))->same_host, SameHost::kSharedMemory);
  EXPECT_EQ(Parse({"--same_host=gpu_memory", "--sync=star", "--gpu_waits=graph"}, MpirunOf(0, 2))->gpu_waits,
            GpuWaits::kGraph);
  EXPECT_EQ(Parse({"--same_host=gpu_memory", "--sync=ring", "--gpu_waits=graph"}, MpirunOf(0, 2))->gpu_waits,
            GpuWaits::kGraph);
  EXPECT_THAT(Refusal({"--same_host=gpu_memory", "--sync=mpi", "--gpu_waits=graph"}, MpirunOf(0, 2)),
              HasSubstr("--sync=mpi does not go through it"));
  EXPECT_THAT(Refusal({"--sync=star", "--gpu_waits=graph"}, MpirunOf(0, 2)),
              HasSubstr("give --same_host=gpu_memory too, or drop it"));
  EXPECT_THAT(Refusal({"--same_host=shared_memory", "--sync=mpi"}, MpirunOf(0, 2)),
              HasSubstr("--sync=mpi sends messages: drop it, or give --sync=ring"));
  // With servers it is tried, over TCP as well.
  EXPECT_EQ(Parse({"--server_ranks=1", "--rendezvous=a:1", "--rank=0", "--world_size=1"})->same_host,
            SameHost::kSharedMemory);
  EXPECT_EQ(
      Parse({"--server_ranks=1", "--rendezvous=a:1", "--rank=0", "--world_size=1", "--same_host=socket"})->same_host,
      SameHost::kSocket);
}

TEST(WorkerOptionsTest, RanksChooseWithoutSync) {
  for (const char* const more : {"--same_host=auto", "--same_host=socket", "--sum_order=tree", "--transport=mpi"}) {
    EXPECT_TRUE(Parse({more}, MpirunOf(0, 2))->RanksChoose()) << more;
    EXPECT_TRUE(Parse({more, "--sync=auto"}, MpirunOf(0, 2))->RanksChoose()) << more;
    EXPECT_FALSE(Parse({more, "--sync=star"}, MpirunOf(0, 2))->RanksChoose()) << more;
  }
  EXPECT_TRUE(Parse({"--rendezvous=a:1", "--rank=1", "--world_size=2"})->RanksChoose());
  EXPECT_FALSE(Parse({"--sync=ring"}, MpirunOf(0, 2))->RanksChoose());
  EXPECT_FALSE(Parse({"--servers=a:1"}, MpirunOf(0, 2))->RanksChoose());
  EXPECT_FALSE(Parse({"--server_ranks=1", "--rendezvous=a:1", "--rank=1", "--world_size=2"})->RanksChoose());
  EXPECT_FALSE(Parse({})->RanksChoose());
}

TEST(WorkerOptionsTest, BucketsAreLargeWhereTheyDoNotTravel) {
  const auto bytes = [](std::vector<const char*> words) { return Parse(std::move(words))->bucket_bytes; };
  EXPECT_EQ(bytes({"--servers=127.0.0.1:1,localhost:2,[::1]:3"}), 4 << 20);
  EXPECT_EQ(bytes({"--servers=127.0.0.1:1,node7:2"}), 256 << 10);
  EXPECT_EQ(bytes({"--servers=node7:1"}), 128 << 10);
  EXPECT_EQ(bytes({"--servers=a:1,b:1,c:1,d:1,e:1,f:1,g:1"}), 896 << 10);
  EXPECT_EQ(bytes({"--servers=a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1"}), 1 << 20);
  EXPECT_EQ(bytes({"--coordinator=node7:1"}), 1 << 20);  // of an unknown number of servers
  const auto over_tcp = [&](const char* rendezvous) {
    return bytes({"--server_ranks=3", rendezvous, "--insecure", "--rank=1", "--world_size=2"});
  };
  EXPECT_EQ(over_tcp("--rendezvous=node7:1"), 384 << 10);
  EXPECT_EQ(over_tcp("--rendezvous=127.0.0.1:1"), 4 << 20);
  EXPECT_EQ(bytes({"--servers=127.0.0.1:1", "--same_host=socket"}), 1 << 20);
  EXPECT_EQ(bytes({"--servers=127.0.0.1:1", "--bucket_bytes=5"}), 5);
  EXPECT_EQ(bytes({}), 1 << 20);
  EXPECT_THAT(Refusal({"--bucket_bytes=-1"}), HasSubstr("bucket_bytes"));
}

TEST(WorkerOptionsTest, BucketsAreTriedWhereRanksAreOwners) {
  EXPECT_TRUE(Parse({"--sync=ring", "--bucket_bytes=auto"}, MpirunOf(0, 2))->TriesBucketSizes());
  EXPECT_TRUE(Parse({"--sync=star", "--bucket_bytes=auto"}, MpirunOf(0, 2))->TriesBucketSizes());
  EXPECT_FALSE(Parse({"--sync=ring"}, MpirunOf(0, 2))->TriesBucketSizes());
  // One worker exchanges nothing.
  EXPECT_FALSE(Parse({"--bucket_bytes=auto"})->TriesBucketSizes());
  EXPECT_EQ(Parse({"--bucket_bytes=auto"})->bucket_bytes, 1 << 20);
  EXPECT_THAT(Refusal({"--bucket_bytes=auto", "--servers=a:1"}), HasSubstr("give a number, or leave out --servers"));
  EXPECT_THAT(Refusal({"--bucket_bytes=auto", "--server_ranks=1", "--rendezvous=a:1", "--rank=0", "--world_size=1"}),
              HasSubstr("or leave out --servers and --server_ranks"));
  EXPECT_THAT(Refusal({"--bucket_bytes=auto", "--sync=mpi"}, MpirunOf(0, 2)), HasSubstr("or --sync=ring"));
}

TEST(WorkerOptionsTest, RefusesContradictions) {
  EXPECT_THAT(Refusal({"--sync=star"}), HasSubstr("--servers"));
  EXPECT_THAT(Refusal({"--sync=ring", "--servers=a:1"}), HasSubstr("drop one of the two"));
  EXPECT_THAT(Refusal({"--sync=local"}, MpirunOf(0, 2)), HasSubstr("one process cannot be one of 2 workers"));
  EXPECT_THAT(Refusal({"--world_size=2"}), HasSubstr("one process cannot be one of 2 workers"));
  EXPECT_THAT(Refusal({"--servers=a:1", "--rank=2", "--world_size=2"}), HasSubstr("--world_size is 2"));
  EXPECT_THAT(Refusal({"--rank=1"}, MpirunOf(0, 2)), HasSubstr("the launcher says rank 0 of 2"));
  EXPECT_THAT(Refusal({"--resume"}), HasSubstr("--checkpoint_dir"));
  EXPECT_THAT(Refusal({"--device=cpu", "--math=tf32"}), HasSubstr("flag --math cannot be \"tf32\": --device=cpu"));
  EXPECT_THAT(Refusal({"--device=cpu", "--conv=cudnn"}), HasSubstr("flag --conv cannot be \"cudnn\": --device=cpu"));
  EXPECT_TRUE(Parse({"--device=cpu", "--conv=own"}).ok());
  EXPECT_THAT(Refusal({"--optimizer=adamw", "--nesterov"}), HasSubstr("nesterov"));
  EXPECT_THAT(Refusal({"--schedule=step"}), HasSubstr("--decay_steps"));
}

TEST(WorkerOptionsTest, WithoutAFolderARunSavesAtItsEnd) {
  const auto plain = Parse({});
  EXPECT_TRUE(plain->saves_by_default && plain->saves_at_end_alone && plain->checkpoint_dir.empty());
  const auto often = Parse({"--checkpoint_every_steps=3"});
  EXPECT_TRUE(often->saves_by_default && !often->saves_at_end_alone);
  const auto elastic = Parse({"--coordinator=a:1"});
  EXPECT_TRUE(elastic->saves_by_default && elastic->saves_at_end_alone);
  EXPECT_THAT(Refusal({"--coordinator=a:1", "--checkpoint_every_steps=3"}),
              HasSubstr("flag --checkpoint_every_steps cannot be \"3\": an elastic run needs --checkpoint_dir=FOLDER"));
  for (const char* given : {"--checkpoint_dir=none", "--checkpoint_dir=a"}) {
    EXPECT_FALSE(Parse({given})->saves_by_default) << given;
  }
  const auto value = [](const std::vector<const char*>& words) {
    const auto flags = AgreedWorkerFlags(*Parse(words));
    return std::ranges::find(flags, "checkpoint_dir", [](const auto& flag) { return flag.first; })->second;
  };
  EXPECT_EQ(value({"--coordinator=a:1"}), "(default, at the end)");
  EXPECT_EQ(value({"--checkpoint_every_steps=3"}), "(default)");
  EXPECT_EQ(value({"--coordinator=a:1", "--checkpoint_dir=none"}), "none");
  EXPECT_EQ(Parse({"--checkpoint_dir=none"})->checkpoint_dir, "");
  EXPECT_EQ(Parse({"--checkpoint_dir=a"})->checkpoint_dir, "a");
  EXPECT_THAT(Refusal({"--checkpoint_dir=none", "--resume"}), HasSubstr("it needs --checkpoint_dir=FOLDER"));
}

TEST(WorkerOptionsTest, RanksEvaluateTogetherAndOneProcessPredicts) {
  EXPECT_TRUE(
      Parse({"--evaluate=run", "--same_host=shared_memory", "--run_id=a", "--join_deadline_s=5"}, MpirunOf(1, 3)).ok());
  EXPECT_TRUE(Parse({"--evaluate=run", "--servers=a:1", "--rank=1", "--world_size=2", "--lanes=2"}).ok());
  for (const char* more : {"--global_batch=8", "--bucket_bytes=auto", "--micro_batches=4"}) {
    EXPECT_THAT(Refusal({"--evaluate=run", more}, MpirunOf(1, 3)), HasSubstr("is for a training, --evaluate"));
  }
  EXPECT_THAT(Refusal({"--evaluate=run", "--coordinator=a:1"}), HasSubstr("leave out --elastic and --coordinator"));
  EXPECT_THAT(Refusal({"--predict=run", "--out=a.csv"}, MpirunOf(0, 2)), HasSubstr("--predict is for one process"));
  EXPECT_THAT(Refusal({"--predict=run", "--out=a.csv", "--join_deadline_s=5"}), HasSubstr("--predict trains nothing"));
}

TEST(WorkerOptionsTest, AFolderOfAnotherDataSetNeedsItsName) {
  for (const auto& [folder, name] : std::map<std::string, std::string>{{"--data_dir=data/mnist", "mnist"},
                                                                       {"--data_dir=/x/CIFAR10/", "cifar10"},
                                                                       {"--data_dir=mine.npz", "npy"},
                                                                       {"--data_dir=a/b.csv.gz", "csv"}}) {
    EXPECT_THAT(std::string(Parse({folder.c_str()}).status().message()),
                AllOf(HasSubstr("read as fashion-mnist"), HasSubstr("add --dataset=" + name + ",")));
    EXPECT_TRUE(Parse({folder.c_str(), "--dataset=fashion-mnist"}).ok());
  }
  for (const char* const folder : {"--data_dir=", "--data_dir=data", "--data_dir=mnist/raw", "--data_dir=csv"}) {
    EXPECT_TRUE(Parse({folder}).ok()) << folder;
  }
}

TEST(WorkerOptionsTest, RefusesValuesThatMakeNoSense) {
  EXPECT_THAT(Refusal({"--global_batch=0"}),
              HasSubstr("flag --global_batch cannot be \"0\": it must be a whole number from 1 to "));
  EXPECT_THAT(Refusal({"--warmup_steps=-1"}), HasSubstr("flag --warmup_steps cannot be \"-1\""));
  EXPECT_THAT(Refusal({"--bucket_bytes=1073741825"}), HasSubstr("from 0 to 1073741824"));
  EXPECT_THAT(Refusal({"--lanes=17"}), HasSubstr("from 1 to 16"));
  EXPECT_THAT(Refusal({"--metrics_port=65536"}), HasSubstr("from -1 to 65535"));
  EXPECT_THAT(Refusal({"--servers=127.0.0.1:0"}), HasSubstr("port 0"));
  EXPECT_THAT(Refusal({"--servers=127.0.0.1:99999"}), HasSubstr("port 99999 is over 65535"));
  EXPECT_THAT(Refusal({"--learning_rate=-1"}), HasSubstr("above 0"));
  EXPECT_THAT(Refusal({"--learning_rate=nan"}), HasSubstr("above 0"));
  EXPECT_THAT(Refusal({"--sync=tree"}), HasSubstr("auto"));
  EXPECT_THAT(Refusal({"--device=gpu"}), HasSubstr("auto, cpu, cuda"));
  EXPECT_THAT(Refusal({"--math=fp16"}), HasSubstr("fp32, tf32, bf16"));
  EXPECT_THAT(Refusal({"--conv=winograd"}), HasSubstr("auto, cudnn, own"));
  EXPECT_THAT(Refusal({"--servers=nowhere"}), HasSubstr("host:port"));
  const std::vector<std::string> addresses(kShardCountMax + 1, "a:1");
  EXPECT_THAT(Refusal({("--servers=" + absl::StrJoin(addresses, ",")).c_str()}), HasSubstr("at most 256 servers"));
  const std::string longest = "--run_id=" + std::string(kRunIdBytesMax, 'r');
  EXPECT_TRUE(Parse({longest.c_str()}).ok());
  EXPECT_THAT(Refusal({(longest + "r").c_str()}), HasSubstr("at most 255 bytes"));
  EXPECT_TRUE(Parse({"--rank=35", "--world_size=36", "--servers=a:1", "--metrics_port=65500"}).ok());
  EXPECT_THAT(Refusal({"--rank=36", "--world_size=37", "--servers=a:1", "--metrics_port=65500"}), HasSubstr("65535"));
}

// The agreement of a job with these options, which all ranks compare before the first step.
std::string AgreementOf(const WorkerOptions& options) {
  const JobSpec job{.world_size = options.world_size,
                    .optimizer = options.optimizer,
                    .schedule = options.schedule,
                    .sum_order = options.sum_order,
                    .buckets = BucketMap::Create({.element_count = int64_t{1} << 22,
                                                  .bucket_bytes = options.bucket_bytes,
                                                  .world_size = options.BucketWorldSize()})
                                   .value(),
                    .agreed_flags = AgreedFlags(WorkerFlags(), &options)};
  return SerializeAgreement(job);
}

// Each flag in turn gets another value. The agreement of the ranks, and that of a resumed run, change if and only if
// the flag's row says so.
TEST(WorkerOptionsTest, RanksAndResumedRunsCompareWhatTheTableSays) {
  const absl::StatusOr<WorkerOptions> usual = ParseWords(OneFlagChanged::Words());
  ASSERT_TRUE(usual.ok()) << usual.status();
  for (const OneFlagChanged& change : OneFlagChanged::All()) {
    const absl::StatusOr<WorkerOptions> options = ParseWords(change.words);
    ASSERT_TRUE(options.ok()) << options.status();
    const FlagRow& row = *change.row;
    EXPECT_EQ(AgreementOf(*options) != AgreementOf(*usual),
              row.Has(kSameOnAllRanks) || row.Has(kGivenOnAllRanks) || row.Has(kInJobSpec))
        << "--" << row.name;
    EXPECT_EQ(ResumedFlags(WorkerFlags(), &*options) != ResumedFlags(WorkerFlags(), &*usual), row.Has(kSameWhenResumed))
        << "--" << row.name;
    // --optimizer=adamw takes the momentum away.
    EXPECT_EQ(SaidFlags(WorkerFlags(), &*options) != SaidFlags(WorkerFlags(), &*usual),
              row.Has(kSaidWhenResumed) || row.name == "optimizer")
        << "--" << row.name;
  }
}

// The two lists that decide bits, spelt out: a row that loses its trait by mistake would agree with itself.
TEST(WorkerOptionsTest, WhatDecidesTheBitsIsAgreedOn) {
  const auto options =
      Parse({"--seed=7", "--threads=2", "--augment=crop_flip", "--model=mlp", "--math=bf16", "--conv=own"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(AgreedFlags(WorkerFlags(), &*options),
              IsSupersetOf({Pair("sync", "local"), Pair("transport", "none"), Pair("seed", "7"), Pair("threads", "2"),
                            Pair("augment", "crop_flip"), Pair("math", "bf16"), Pair("conv", "own")}));
  EXPECT_THAT(ResumedFlags(WorkerFlags(), &*options),
              UnorderedElementsAre(Pair("dataset", "fashion-mnist"), Pair("augment", "crop_flip"),
                                   Pair("normalize", "channels"), Pair("global_batch", "64"), Pair("seed", "7"),
                                   Pair("sum_order", "chain"), Pair("micro_batches", "0"), Pair("optimizer", "sgd"),
                                   Pair("clip_norm", "0")));
  EXPECT_THAT(SaidFlags(WorkerFlags(), &*options),
              IsSupersetOf({Pair("learning_rate", "0.05"), Pair("nesterov", "false"), Pair("schedule", "cosine"),
                            Pair("threads", "2"), Pair("isa", "auto"), Pair("math", "bf16")}));
}

// Two paths may be one file's; DecidingFacts has its digest.
TEST(WorkerOptionsTest, APathIsNotCompared) {
  const auto options = Parse({"--model=a/net.textproto"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_THAT(AgreedFlags(WorkerFlags(), &*options), Not(Contains(Pair("model", _))));
}

TEST(WorkerOptionsTest, AForeignLauncherIsRefusedByItsVariables) {
  const LauncherEnvironment torchrun{.foreign = "RANK=0 WORLD_SIZE=2 (torchrun or Kubeflow)"};
  const auto parse = [&](std::vector<const char*> words) {
    words.insert(words.begin(), "worker");
    return ParseWorkerOptions(static_cast<int>(words.size()), words.data(), torchrun).status();
  };
  for (const auto& words : std::vector<std::vector<const char*>>{
           {}, {"--sync=ring"}, {"--sync=star", "--servers=a:1"}, {"--sync=ring", "--world_size=2"}}) {
    const absl::Status status = parse(words);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("RANK=0 WORLD_SIZE=2 (torchrun or Kubeflow)"), HasSubstr("--rendezvous")));
  }
  // Whoever says it in flags has the last word.
  EXPECT_EQ(parse({"--sync=local"}), absl::OkStatus());
  EXPECT_EQ(parse({"--rendezvous=127.0.0.1:1", "--rank=1", "--world_size=2"}), absl::OkStatus());
  EXPECT_EQ(parse({"--servers=a:1", "--rank=1", "--world_size=2"}), absl::OkStatus());
}

}  // namespace
}  // namespace starring
