#include "common/security/job_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/security/site_certificates.h"

namespace starring {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CertificatesTest, AKeyAndItsCertificateAreReadAsTheyWereMade) {
  const auto made = MakeSelfSigned("starring");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->private_key, StartsWith("-----BEGIN PRIVATE KEY-----\n"));
  EXPECT_THAT(made->certificate, StartsWith("-----BEGIN CERTIFICATE-----\n"));
  // In any order, with anything between them.
  const auto read = ParseKeyAndCertificate("note\n" + made->certificate + "\n# note\n" + made->private_key);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->private_key, made->private_key);
  EXPECT_EQ(read->certificate, made->certificate);
}

TEST(CertificatesTest, NoTwoAreEqual) {
  EXPECT_NE(MakeSelfSigned("starring")->private_key, MakeSelfSigned("starring")->private_key);
}

TEST(CertificatesTest, WhatIsNoPairIsRefused) {
  const auto one = MakeSelfSigned("starring");
  const auto other = MakeSelfSigned("starring");
  ASSERT_TRUE(one.ok() && other.ok());
  const auto error = [](const std::string& pem) { return Message(ParseKeyAndCertificate(pem).status()); };
  EXPECT_THAT(error(""), HasSubstr("no private key"));
  EXPECT_THAT(error(one->certificate), HasSubstr("no private key"));
  EXPECT_THAT(error(one->private_key), HasSubstr("no certificate"));
  EXPECT_THAT(error(one->private_key + other->certificate), HasSubstr("do not belong together"));
  std::string damaged = one->private_key;
  damaged[60] = '*';  // within the first line of base64, which has no such character
  EXPECT_THAT(error(damaged + one->certificate), HasSubstr("no private key"));
}

// OpenSSL would ask for the passphrase on the terminal, and the process would wait there.
TEST(CertificatesTest, AnEncryptedKeyIsRefusedAndNoPassphraseIsAskedFor) {
  const auto pair = MakeSelfSigned("starring");
  ASSERT_TRUE(pair.ok());
  const std::string encrypted = Encrypted(pair->private_key, "passphrase");
  EXPECT_THAT(Message(ParseKeyAndCertificate(encrypted + pair->certificate).status()),
              HasSubstr("without a passphrase"));
}

TEST(CertificatesTest, ACertificateIsValidNow) {
  SiteCertificates site;
  const KeyAndCertificate expired = site.Issue("127.0.0.1", {.days_valid = -1});
  const absl::Status status = CheckKeyAndCertificate(expired.private_key, expired.certificate);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("which is not now"));
  const KeyAndCertificate valid = site.Issue("127.0.0.1");
  EXPECT_TRUE(CheckKeyAndCertificate(valid.private_key, valid.certificate).ok());
  EXPECT_TRUE(CheckCertificate(site.authority()).ok());
  EXPECT_THAT(Message(CheckCertificate("text")), HasSubstr("no certificate"));
}

}  // namespace
}  // namespace starring
