#include "worker/check/check_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/flags/command_line.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::ProcessFacts FactsOf(v1::ProcessFacts::Role role, int number) {
  v1::ProcessFacts facts;
  facts.set_role(role);
  facts.set_number(number);
  facts.set_host(absl::StrCat("host", number));
  facts.set_program_version("0.1");
  facts.set_wire_version(3);
  facts.set_cores(8);
  facts.set_memory_bytes(int64_t{16} << 30);
  facts.set_descriptors(4096);
  return facts;
}

v1::LinkReport LinkTo(v1::ProcessFacts::Role role, int peer, v1::LinkReport::Means means) {
  v1::LinkReport link;
  link.set_means(means);
  link.set_peer_role(role);
  link.set_peer(peer);
  link.set_address(absl::StrCat("10.0.0.", peer + 1, ":7077"));
  link.set_prefix_bits(24);
  link.set_interface("eth0");
  link.set_round_trip_us(120);
  link.set_bytes_per_second(117e6);
  return link;
}

// Two workers and two servers without any problem.
CheckFindings Star() {
  CheckFindings findings{.contact = Contact::kServers, .world_size = 2, .shard_count = 2, .lanes = 2};
  for (int rank = 0; rank < 2; ++rank) {
    v1::ProcessReport report;
    *report.mutable_facts() = FactsOf(v1::ProcessFacts::WORKER, rank);
    for (int shard = 0; shard < 2; ++shard) {
      *report.add_links() = LinkTo(v1::ProcessFacts::SERVER, shard, v1::LinkReport::GRPC);
      *report.add_servers() = FactsOf(v1::ProcessFacts::SERVER, shard);
    }
    findings.reports.push_back(report);
  }
  return findings;
}

CheckFindings Ring(int world_size) {
  CheckFindings findings{.contact = Contact::kMpirun, .world_size = world_size};
  for (int rank = 0; rank < world_size; ++rank) {
    v1::ProcessReport report;
    *report.mutable_facts() = FactsOf(v1::ProcessFacts::WORKER, rank);
    for (const int target : RingTargets(rank, world_size)) {
      *report.add_links() = LinkTo(v1::ProcessFacts::WORKER, target, v1::LinkReport::TCP);
    }
    findings.reports.push_back(report);
  }
  return findings;
}

void Fail(v1::LinkReport* link, const std::string& error, const std::string& way_out) {
  link->set_error(error);
  link->set_way_out(way_out);
}

// The whole text. No line may be too long.
std::string TableOf(const CheckFindings& findings) {
  const std::string table = CheckTable(findings) + CheckEnd(findings, JudgeCheck(findings));
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(table, '\n'))) {
    EXPECT_LE(line.size(), 120u) << line;
  }
  return table;
}

TEST(CheckTableTest, Ready) {
  const CheckVerdict star = JudgeCheck(Star());
  EXPECT_EQ(star.exit_code, kExitOk);
  EXPECT_EQ(star.sentence, "ready: 2 workers reach all 2 servers");
  EXPECT_THAT(TableOf(Star()), HasSubstr("all: starring 0.1, wire 3"));
  EXPECT_THAT(TableOf(Star()), HasSubstr("0.12 ms"));
  EXPECT_THAT(TableOf(Star()), HasSubstr("936 Mbit/s"));
  EXPECT_EQ(JudgeCheck(Ring(4)).sentence, "ready: 4 workers reach each other");
  EXPECT_EQ(JudgeCheck({}).sentence, "ready: one worker, which needs no other");
}

TEST(CheckTableTest, UnreachableServer) {
  CheckFindings findings = Star();
  for (v1::ProcessReport& report : findings.reports) {
    Fail(report.mutable_links(1), "connection refused (ECONNREFUSED)", "start that server");
  }
  const CheckVerdict verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitPeerMissing);
  EXPECT_EQ(verdict.sentence,
            "not ready: w0, w1 cannot reach s1 at 10.0.0.2:7077: connection refused (ECONNREFUSED): start that server");
  EXPECT_THAT(TableOf(findings), HasSubstr("connection refused (ECONNREFUSED)"));
}

// A worker does not know the address of the other end. A report that has the other end's facts names its host.
TEST(CheckTableTest, AServerOverTcp) {
  CheckFindings findings = Star();
  findings.contact = Contact::kRendezvous;
  EXPECT_EQ(JudgeCheck(findings).sentence, "ready: 2 workers reach all 2 servers");
  findings.reports.resize(1);
  findings.reports[0].mutable_links(1)->clear_address();
  Fail(findings.reports[0].mutable_links(1), "server 1 did not answer to rank 0 in time", "");
  EXPECT_EQ(JudgeCheck(findings).sentence,
            "not ready: w0 cannot reach s1 at host1: server 1 did not answer to rank 0 in time");
  findings.reports[0].clear_servers();
  EXPECT_EQ(JudgeCheck(findings).sentence, "not ready: w0 cannot reach s1: server 1 did not answer to rank 0 in time");
}

TEST(CheckTableTest, ServersInAnotherOrder) {
  CheckFindings findings = Star();
  Fail(findings.reports[0].mutable_links(0), "answers as shard 1", "give --servers in shard order");
  const CheckVerdict verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitRefused);
  EXPECT_THAT(verdict.sentence, HasSubstr("10.0.0.1:7077 answers as shard 1, --servers has it as shard 0"));
}

TEST(CheckTableTest, MissingWorkers) {
  CheckFindings findings = Star();
  findings.world_size = 4;
  findings.missing = {2, 3};
  const CheckVerdict verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitPeerMissing);
  EXPECT_THAT(verdict.sentence, StartsWith("not ready: w2, w3 have not reported within 20s"));
}

TEST(CheckTableTest, DifferencesThatAJobRefuses) {
  CheckFindings findings = Star();
  findings.reports[1].mutable_facts()->set_program_version("0.2");
  EXPECT_EQ(JudgeCheck(findings).exit_code, kExitRefused);
  EXPECT_THAT(JudgeCheck(findings).sentence, HasSubstr("0.2 (wire 3) on w1"));

  findings = Star();
  findings.world_size = 1024;
  for (v1::ProcessReport& report : findings.reports) report.mutable_servers(0)->set_descriptors(1024);
  EXPECT_EQ(JudgeCheck(findings).exit_code, kExitRefused);
  EXPECT_THAT(JudgeCheck(findings).sentence, HasSubstr("s0 can have 1024 files open, this job needs 4288"));

  findings = Star();
  findings.uses_gpus = true;
  findings.reports[0].mutable_facts()->set_gpu("1 x NVIDIA H200");
  EXPECT_EQ(JudgeCheck(findings).exit_code, kExitRefused);
  EXPECT_THAT(JudgeCheck(findings).sentence, HasSubstr("w0 has a GPU, w1 has none"));
}

// A job would run: the verdict is "ready", and the sentence says what would make it better.
TEST(CheckTableTest, DifferencesThatAJobBears) {
  CheckFindings findings = Star();
  // Both workers reach the first server; for the second worker its clock is 3.5 s late.
  findings.reports[1].mutable_links(0)->set_clock_ahead_s(-3.5);
  findings.reports[1].mutable_links(1)->set_clock_ahead_s(-3.5);
  CheckVerdict verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitOk);
  EXPECT_THAT(verdict.sentence, StartsWith("ready: 2 workers reach all 2 servers; but the clock of w1 is 3.5 s ahead"));

  findings = Star();
  findings.reports[1].mutable_facts()->set_cores(2);
  findings.threads = 4;
  findings.reports[0].mutable_servers(0)->set_memory_bytes(100 << 20);
  verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitOk);
  EXPECT_THAT(verdict.sentence, HasSubstr("s0 can get 0.1 GiB of memory on host0"));
  EXPECT_THAT(TableOf(findings), HasSubstr("also: w1 may run on 2 of host1's cores and has --threads=4"));
  EXPECT_THAT(TableOf(findings), HasSubstr("also: w1 has half of the cores of others or fewer (8)"));
}

TEST(CheckTableTest, AQuotaIsToldAndCounts) {
  CheckFindings findings = Star();
  EXPECT_THAT(TableOf(findings), Not(HasSubstr("quota")));
  for (v1::ProcessReport& report : findings.reports) report.mutable_facts()->set_cpu_quota(6.5);
  findings.reports[0].mutable_servers(0)->set_cpu_quota(0.5);
  EXPECT_THAT(TableOf(findings), HasSubstr("\ns0: 8 cores, quota 0.5\nw0, w1: 8 cores, quota 6.5\n"));
  EXPECT_EQ(JudgeCheck(findings).sentence, "ready: 2 workers reach all 2 servers");

  findings.reports[1].mutable_facts()->set_cpu_quota(0.5);
  EXPECT_THAT(
      JudgeCheck(findings).sentence,
      StartsWith("ready: 2 workers reach all 2 servers; but w1 has 8 cores, quota 0.5, on host1 and --threads=1: "
                 "the kernel stops it in each period: raise the quota"));
  EXPECT_THAT(TableOf(findings), HasSubstr("also: w1 has half of the cores of others or fewer (6)"));
}

TEST(CheckTableTest, AWorkerThatDoesNotKnowItsCoresMayHaveEnough) {
  CheckFindings findings = Star();
  findings.threads = 4;
  findings.reports[1].mutable_facts()->set_cores(0);
  EXPECT_EQ(JudgeCheck(findings).sentence, "ready: 2 workers reach all 2 servers");
}

TEST(CheckTableTest, MpiThatHangsIsToldOfTheNetworkThatWorks) {
  CheckFindings findings = Ring(2);
  for (v1::ProcessReport& report : findings.reports) {
    *report.add_links() = report.links(0);
    report.mutable_links(1)->set_address("172.17.0.1:7077");
    Fail(report.mutable_links(1), "no route to host (EHOSTUNREACH)", "");
    *report.add_links() = LinkTo(v1::ProcessFacts::WORKER, 1 - report.facts().number(), v1::LinkReport::MPI);
  }
  EXPECT_EQ(JudgeCheck(findings).exit_code, kExitOk) << "one address of each pair is enough";
  EXPECT_THAT(MpiWarning(findings), HasSubstr("OMPI_MCA_btl_tcp_if_include=10.0.0.0/24"));
  EXPECT_EQ(MpiWarning(Ring(2)), "");
  Fail(findings.reports[0].mutable_links(2), "a message does not arrive", "");
  const CheckVerdict verdict = JudgeCheck(findings);
  EXPECT_EQ(verdict.exit_code, kExitPeerMissing);
  EXPECT_THAT(verdict.sentence, HasSubstr("MPI's messages from w0 to w1 fail"));
  EXPECT_THAT(verdict.sentence, HasSubstr("set OMPI_MCA_btl_tcp_if_include=10.0.0.0/24"));
}

TEST(CheckTableTest, ALargeJobFitsAScreenOrTwo) {
  CheckFindings findings = Ring(1024);
  findings.bandwidth = PlanBandwidth(2, 1024);
  Fail(findings.reports[900].mutable_links(3), "connection timed out (ETIMEDOUT)", "let TCP pass");
  const std::string table = TableOf(findings);
  EXPECT_LE(std::count(table.begin(), table.end(), '\n'), 130);
  EXPECT_THAT(table, HasSubstr("w900"));
  EXPECT_THAT(table, HasSubstr("connections more, all reachable"));
  EXPECT_THAT(table, HasSubstr("not all 1023"));
  EXPECT_THAT(table, HasSubstr("only one rank in"));
  EXPECT_THAT(TableOf(Ring(4)), Not(HasSubstr("only one rank in")));
}

TEST(CheckTableTest, LongTextsAreCut) {
  CheckFindings findings = Star();
  const std::string text(300, 'x');
  for (v1::ProcessReport& report : findings.reports) {
    report.mutable_facts()->set_host(text);
    report.mutable_facts()->set_gpu(text);
    report.mutable_links(0)->set_interface(text);
    report.mutable_links(0)->set_address(text);
    Fail(report.mutable_links(1), "a text of several words that is longer than its column is by far", text);
  }
  const std::string table = CheckTable(findings) + CheckEnd(findings, JudgeCheck(findings));
  EXPECT_THAT(table, HasSubstr("a text of several words"));
}

}  // namespace
}  // namespace starring
