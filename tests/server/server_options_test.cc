#include "server/server_options.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/job/cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/flags/flag_table_checks.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<ServerOptions> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "server");
  return ParseServerOptions(static_cast<int>(words.size()), words.data());
}

std::string Refusal(const std::vector<const char*>& words) {
  const auto options = Parse(words);
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

TEST(ServerOptionsTest, EveryFlagIsInTheTableAndInTheHelp) { ExpectWholeTable(ServerFlags()); }

TEST(ServerOptionsTest, EveryNumberEndsAtItsLimit) {
  ExpectWholeNumbersEnd(ServerFlags(), [](const std::string& word) { return Refusal({word.c_str()}); });
  EXPECT_EQ(Parse({"--memory_limit_gb=1e6"})->memory_bytes_max, int64_t{1'000'000'000'000'000});
  EXPECT_THAT(Refusal({"--memory_limit_gb=1000001"}), HasSubstr("from 0 to 1e+06"));
  EXPECT_THAT(Refusal({"--shard=256"}), HasSubstr("to 255"));
  for (const char* const word : {"--first_workers=1025", "--min_workers=1025"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("to 1024")) << word;
  }
  for (const char* const word :
       {"--member_gone_s=604801", "--member_silent_s=604801", "--member_stuck_s=604801", "--join_deadline_s=604801"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("to 604800")) << word;
  }
}

TEST(ServerOptionsTest, JoinDeadline) {
  EXPECT_EQ(Parse({})->join_deadline, absl::InfiniteDuration());
  EXPECT_EQ(Parse({"--join_deadline_s=7"})->join_deadline, absl::Seconds(7));
  EXPECT_THAT(Refusal({"--join_deadline_s=-1"}), HasSubstr("whole number from 0"));
}

TEST(ServerOptionsTest, TheOldNameOfJoinDeadlineIsReadForOneRelease) {
  EXPECT_EQ(Parse({"--join_deadline=300ms"})->join_deadline, absl::Milliseconds(300));
  EXPECT_THAT(Refusal({"--join_deadline=1s", "--join_deadline_s=1"}), HasSubstr("keep the latter"));
  EXPECT_THAT(Refusal({"--join_deadline=-1s"}), HasSubstr("above 0"));
  EXPECT_THAT(Refusal({"--join_deadline=1"}), HasSubstr("duration such as 90s"));
}

// The server takes a flag if and only if the table says that the cell may.
TEST(ServerOptionsTest, EachCellWithServersIsAJob) {
  for (const Cell& cell : Cells()) {
    const std::string transport = absl::StrCat("--transport=", TransportName(cell.transport));
    const auto parse = [&](const char* more) {
      std::vector<const char*> words = {transport.c_str(), more};
      if (cell.contact == Contact::kRendezvous) words.insert(words.end(), {"--rendezvous=a:1", "--world_size=3"});
      return Parse(words);
    };
    const bool is_choice = FindCell({.server_count = 1, .transport = cell.transport}) != nullptr;
    ASSERT_EQ(parse("--shard=0").ok(), is_choice) << cell.name << ": " << parse("--shard=0").status();
    if (cell.placement != Placement::kServers) continue;
    EXPECT_EQ(parse("--shard=0")->cell().transport, cell.transport);
    EXPECT_EQ(absl::StrContains(parse("--elastic").status().message(), "the world is fixed"), !cell.May(Cell::kElastic))
        << cell.name;
    EXPECT_EQ(absl::StrContains(parse("--tls_ca=f").status().message(), "without --tls nothing is encrypted"),
              cell.May(Cell::kSiteCertificates))
        << cell.name;
  }
}

TEST(ServerOptionsTest, RefusesWhatAnElasticRunHasNot) {
  for (const char* const word :
       {"--coordinator=a:1", "--announce=a:1", "--state_dir=s", "--flush_state", "--first_workers=2", "--min_workers=2",
        "--member_gone_s=2", "--member_silent_s=2", "--member_stuck_s=2"}) {
    EXPECT_THAT(Refusal({word}), HasSubstr("is for an elastic run: give --elastic, too")) << word;
  }
  EXPECT_THAT(Refusal({"--elastic", "--transport=tcp", "--rendezvous=a:1", "--world_size=3"}),
              HasSubstr("over tcp the world is fixed: give --transport=grpc"));
  EXPECT_TRUE(Parse({"--print_log", "--state_dir=s"})->print_log);
  EXPECT_THAT(Refusal({"--print_log"}), HasSubstr("it needs --state_dir=folder, where the log is"));
  // Shard 0 has the log, and is the one that the others dial.
  EXPECT_TRUE(Parse({"--elastic", "--state_dir=s"}).ok());
  EXPECT_THAT(Refusal({"--elastic"}), HasSubstr("shard 0 needs --state_dir=folder for the log of the run"));
  EXPECT_THAT(Refusal({"--elastic", "--state_dir=s", "--coordinator=a:1"}),
              HasSubstr("shard 0 is the coordinator: drop it"));
  EXPECT_TRUE(Parse({"--elastic", "--shard=1", "--shard_count=2", "--coordinator=a:1"}).ok());
  EXPECT_THAT(Refusal({"--elastic", "--shard=1", "--shard_count=2"}),
              HasSubstr("a shard needs --coordinator=host:port, where shard 0 listens"));
  EXPECT_THAT(Refusal({"--elastic", "--shard=1", "--shard_count=2", "--coordinator=nowhere"}),
              HasSubstr("--coordinator: "));
}

TEST(ServerOptionsTest, RefusesPortsThatAreNone) {
  EXPECT_THAT(Refusal({"--listen=127.0.0.1:99999"}),
              AllOf(HasSubstr("--listen: address"), HasSubstr("port 99999 is over 65535")));
  EXPECT_THAT(Refusal({"--shard=1", "--shard_count=2", "--metrics_port=65535"}), HasSubstr("ports end at 65535"));
  EXPECT_EQ(Parse({"--shard=1", "--shard_count=2", "--metrics_port=9400"})->metrics_port, 9401);
  EXPECT_EQ(Parse({"--shard=1", "--shard_count=2", "--metrics_port=0"})->metrics_port, 0);
}

TEST(ServerOptionsTest, ARangeIsForAPortThatTheServerChooses) {
  EXPECT_THAT(Refusal({"--port_range=7100-7000", "--listen=127.0.0.1:0"}), HasSubstr("it must be: first-last"));
  EXPECT_THAT(Refusal({"--port_range=7000-7100"}),
              HasSubstr("--listen=127.0.0.1:7077 has a port already: give it port 0, or drop the range"));
  const auto grpc = Parse({"--port_range=7000-7100", "--listen=127.0.0.1:0"});
  ASSERT_TRUE(grpc.ok()) << grpc.status();
  EXPECT_EQ(grpc->port_range.first, 7000);
  EXPECT_EQ(grpc->port_range.last, 7100);
  EXPECT_TRUE(Parse({"--port_range=7000-7100", "--transport=tcp", "--rendezvous=a:1", "--world_size=3"}).ok());
}

TEST(ServerOptionsTest, OverTcpItMeetsTheWorkers) {
  const auto options = Parse({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--shard=1", "--shard_count=2"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->transport, TransportKind::kTcp);
  EXPECT_EQ(options->world_size, 3);
  EXPECT_THAT(Refusal({"--transport=tcp", "--world_size=3"}), HasSubstr("it needs --rendezvous=host:port"));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1"}), HasSubstr("give the number of workers"));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=nowhere", "--world_size=3"}), HasSubstr("--rendezvous"));
  EXPECT_EQ(options->listen, "") << "GetStatus is answered only if that is asked for";
  EXPECT_EQ(Parse({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--listen=a:1"})->listen, "a:1");
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--listen=nowhere"}),
              HasSubstr("--listen: "));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--port_file=f"}),
              HasSubstr("no worker has to know"));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1", "--world_size=1024"}), HasSubstr("over 1024 processes"));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--tls"}),
              HasSubstr("it needs --job_secret=FILE"));
  EXPECT_THAT(Refusal({"--transport=tcp", "--rendezvous=a:1", "--world_size=3", "--tls_ca=f"}),
              HasSubstr("is for connections by gRPC"));
  EXPECT_THAT(Refusal({"--rendezvous=a:1"}), HasSubstr("give --transport=tcp"));
  EXPECT_THAT(Refusal({"--world_size=3"}), HasSubstr("give --transport=tcp"));
}

TEST(ServerOptionsTest, AnElasticShardListensWhereOthersCanDial) {
  const auto words = [](const char* listen) { return std::vector{"--elastic", "--state_dir=s", listen}; };
  EXPECT_TRUE(Parse(words("--listen=node7:0")).ok());
  EXPECT_TRUE(Parse({"--listen=0.0.0.0:0"}).ok());
  for (const char* listen : {"--listen=0.0.0.0:0", "--listen=[::]:7077"}) {
    EXPECT_THAT(Refusal(words(listen)), AllOf(HasSubstr("the workers of an elastic run are told this address"),
                                              HasSubstr("or as --announce=host:port")));
  }
}

TEST(ServerOptionsTest, AnElasticShardMayAnnounceAnotherAddress) {
  const auto words = [](const char* announce) {
    return std::vector{"--elastic", "--state_dir=s", "--listen=0.0.0.0:7077", announce};
  };
  EXPECT_EQ(Parse(words("--announce=node7:7078"))->announce, "node7:7078");
  EXPECT_TRUE(Parse(words("--announce=[fe80::7]:7078")).ok());
  for (const char* const bad :
       {"--announce=node7", "--announce=node7:", "--announce=:7078", "--announce=node7:99999"}) {
    EXPECT_THAT(Refusal(words(bad)), HasSubstr("--announce: address \"")) << bad;
  }
  for (const char* const bad : {"--announce=0.0.0.0:7078", "--announce=[::]:7078", "--announce=node7:0"}) {
    EXPECT_THAT(Refusal(words(bad)), HasSubstr("no worker can dial it")) << bad;
  }
}

// Its generations' names are longer.
TEST(ServerOptionsTest, ALongRunIdIsRefused) {
  const std::string word = "--run_id=" + std::string(235, 'r');
  EXPECT_TRUE(Parse({(word + std::string(20, 'r')).c_str()}).ok());
  EXPECT_THAT(Refusal({(word + std::string(21, 'r')).c_str()}), HasSubstr("at most 255 bytes"));
  EXPECT_TRUE(Parse({"--elastic", "--state_dir=s", word.c_str()}).ok());
  EXPECT_THAT(Refusal({"--elastic", "--state_dir=s", (word + "r").c_str()}), HasSubstr("at most 235 bytes"));
}

TEST(ServerOptionsTest, RefusesAShardThatIsNone) {
  EXPECT_THAT(Refusal({"--shard=2", "--shard_count=2"}), HasSubstr("--shard_count is 2"));
  EXPECT_THAT(Refusal({"--shard=-1"}), HasSubstr("flag --shard cannot be \"-1\""));
}

}  // namespace
}  // namespace starring
