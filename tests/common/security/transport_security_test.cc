#include "common/security/transport_security.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/security/job_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/security/site_certificates.h"

namespace starring {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Write(const std::string& name, const std::string& content) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::ofstream(path, std::ios::binary) << content;
  chmod(path.c_str(), 0600);
  return path;
}

std::string Secret() {
  const std::string path = absl::StrCat(::testing::TempDir(), "/secret");
  unlink(path.c_str());
  EXPECT_TRUE(MakeJobSecret(path).ok());
  return path;
}

std::string Error(const SecurityFiles& files) { return std::string(LoadTransportSecurity(files).status().message()); }

TEST(TransportSecurityTest, EachWayHasItsName) {
  EXPECT_STREQ(SecurityName(*LoadTransportSecurity({})), "none");
  const std::string secret = Secret();
  EXPECT_STREQ(SecurityName(*LoadTransportSecurity({.job_secret = secret})), "token");
  const auto tls = LoadTransportSecurity({.job_secret = secret, .tls = true});
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_STREQ(SecurityName(*tls), "tls");
  EXPECT_EQ(tls->tls->certificate, tls->tls->trusted);
  EXPECT_EQ(tls->request_key.size(), 32u);
  EXPECT_EQ(tls->rank_key.size(), 32u);
}

TEST(TransportSecurityTest, ASitesCertificatesReplaceTheSecrets) {
  const SiteCertificates site;
  const KeyAndCertificate pair = site.Issue("127.0.0.1");
  SecurityFiles files{.job_secret = Secret(),
                      .tls = true,
                      .tls_ca = Write("ca", site.authority()),
                      .tls_certificate = Write("certificate", pair.certificate),
                      .tls_key = Write("key", pair.private_key)};
  const auto security = LoadTransportSecurity(files);
  ASSERT_TRUE(security.ok()) << security.status();
  EXPECT_STREQ(SecurityName(*security), "tls_ca");
  EXPECT_EQ(security->tls->trusted, site.authority());
  EXPECT_EQ(security->tls->server_name, "");
  EXPECT_EQ(security->request_key.size(), 32u);  // still needed to join

  files.job_secret.clear();
  EXPECT_TRUE(LoadTransportSecurity(files).ok());
  SecurityFiles wrong = files;
  wrong.tls_key = Write("other", MakeSelfSigned("x")->private_key);
  EXPECT_THAT(Error(wrong), HasSubstr("do not belong together"));
  wrong = files;
  chmod(files.tls_key.c_str(), 0644);
  EXPECT_THAT(Error(wrong), AllOf(HasSubstr("--tls_key"), HasSubstr("mode 0644"), HasSubstr("chmod 600")));
  wrong.tls_ca = "/nowhere/ca";
  EXPECT_THAT(Error(wrong), AllOf(HasSubstr("--tls_ca"), HasSubstr("/nowhere/ca")));
  wrong.tls_ca = Write("no_ca", "text");
  EXPECT_THAT(Error(wrong), HasSubstr("no certificate"));
  // Reading these would fill the memory.
  wrong.tls_ca = "/dev/zero";
  EXPECT_THAT(Error(wrong), HasSubstr("/dev/zero is no file"));
  wrong.tls_ca = Write("long", std::string(kCertificatesBytesMax + 1, 'x'));
  EXPECT_THAT(Error(wrong), HasSubstr("has 1048577 bytes, keys and certificates have at most 1048576"));
}

TEST(TransportSecurityTest, FlagsThatContradictAreRefused) {
  EXPECT_THAT(Error({.tls = true}), AllOf(HasSubstr("--tls"), HasSubstr("--job_secret=FILE")));
  EXPECT_THAT(Error({.tls_ca = "a", .tls_certificate = "b", .tls_key = "c"}), HasSubstr("without --tls"));
  EXPECT_THAT(Error({.tls = true, .tls_ca = "a"}), HasSubstr("give all three or none"));
  EXPECT_THAT(Error({.job_secret = "/nowhere/secret"}), AllOf(HasSubstr("--job_secret"), HasSubstr("--make_secret")));
}

}  // namespace
}  // namespace starring
