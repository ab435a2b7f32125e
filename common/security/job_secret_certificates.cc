#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/security/job_secret.h"

namespace starring {
namespace {

// The clocks of a cluster differ, so a certificate is valid from a day before it was made. No job runs for ten years.
constexpr long kSecondsBefore = 24 * 3600;
constexpr int kDaysAfter = 3650;
// Issuer and serial number together identify a certificate (RFC 5280). All of ours have one issuer, so the number is
// drawn. 127 bits make a positive number of 16 bytes; the standard allows 20.
constexpr int kSerialBits = 127;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
};
using Bio = std::unique_ptr<BIO, Free>;
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Certificate = std::unique_ptr<X509, Free>;

// OpenSSL keeps a queue of errors for each thread. It is cleared here, so that a later failure does not report this
// one.
absl::Status OpensslError(absl::string_view what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_get_error(); error != 0) ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", what, ": ", text));
}

// The result reads from `pem` itself, which must live as long.
Bio Reader(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

std::string TextIn(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

// Without this OpenSSL would ask for the passphrase of an encrypted key on the terminal, and wait for an answer.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<Key> ParseKey(const std::string& pem) {
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError("there is no private key in it (PEM, without a passphrase)");
}

absl::StatusOr<Certificate> ParseCertificate(const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate != nullptr) return certificate;
  return absl::InvalidArgumentError("there is no certificate in it (PEM)");
}

std::string TimeText(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  ASN1_TIME_print(bio.get(), time);
  return TextIn(bio.get());
}

absl::Status CheckPair(EVP_PKEY* key, X509* certificate) {
  if (X509_check_private_key(certificate, key) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("private key and certificate do not belong together");
  }
  const ASN1_TIME* const begin = X509_get0_notBefore(certificate);
  const ASN1_TIME* const end = X509_get0_notAfter(certificate);
  // The call returns 0 for a time that it cannot read, so both comparisons are strict: such a certificate is refused.
  if (X509_cmp_current_time(begin) < 0 && X509_cmp_current_time(end) > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("its certificate is valid from ", TimeText(begin), " to ",
                                                 TimeText(end),
                                                 ", which is not now: make another, or correct this machine's clock"));
}

absl::Status AddExtension(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  // X509_add_ext adds a copy; this one is freed here.
  const std::unique_ptr<X509_EXTENSION, Free> extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpensslError("add an extension to a certificate");
  }
  return absl::OkStatus();
}

absl::Status DrawSerial(X509* certificate) {
  const std::unique_ptr<BIGNUM, Free> number(BN_new());
  if (number == nullptr || BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return OpensslError("draw a number");
  }
  return absl::OkStatus();
}

absl::StatusOr<Certificate> SignSelf(EVP_PKEY* key, const std::string& name) {
  Certificate certificate(X509_new());
  CHECK(certificate != nullptr);
  // Only version 3 has extensions.
  X509_set_version(certificate.get(), X509_VERSION_3);
  RETURN_IF_ERROR(DrawSerial(certificate.get()));
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kSecondsBefore);
  X509_time_adj_ex(X509_getm_notAfter(certificate.get()), kDaysAfter, 0, nullptr);
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                             0);
  // Issuer and subject are the same name: that makes the certificate self-signed.
  X509_set_issuer_name(certificate.get(), subject);
  X509_set_pubkey(certificate.get(), key);
  // A thief of the key must not be able to sign certificates that peers would trust.
  RETURN_IF_ERROR(AddExtension(certificate.get(), NID_basic_constraints, "critical,CA:FALSE"));
  // gRPC compares host names with this extension alone, not with the subject.
  RETURN_IF_ERROR(AddExtension(certificate.get(), NID_subject_alt_name, absl::StrCat("DNS:", name)));
  if (X509_sign(certificate.get(), key, EVP_sha256()) == 0) return OpensslError("sign a certificate");
  return certificate;
}

absl::StatusOr<KeyAndCertificate> ToPem(EVP_PKEY* key, X509* certificate) {
  const Bio key_text(BIO_new(BIO_s_mem()));
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PrivateKey(key_text.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1 ||
      PEM_write_bio_X509(certificate_text.get(), certificate) != 1) {
    return OpensslError("write PEM");
  }
  return KeyAndCertificate{.private_key = TextIn(key_text.get()), .certificate = TextIn(certificate_text.get())};
}

}  // namespace

absl::StatusOr<KeyAndCertificate> MakeSelfSigned(const std::string& name) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpensslError("make a key");
  ASSIGN_OR_RETURN(const Certificate certificate, SignSelf(key.get(), name));
  return ToPem(key.get(), certificate.get());
}

absl::StatusOr<KeyAndCertificate> ParseKeyAndCertificate(const std::string& pem) {
  ASSIGN_OR_RETURN(const Key key, ParseKey(pem));
  ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(pem));
  RETURN_IF_ERROR(CheckPair(key.get(), certificate.get()));
  // The pair is written anew, instead of returning `pem`: the file may have more in it, which gRPC must not take for a
  // chain.
  return ToPem(key.get(), certificate.get());
}

absl::Status CheckKeyAndCertificate(const std::string& private_key, const std::string& certificates) {
  ASSIGN_OR_RETURN(const Key key, ParseKey(private_key), "the key");
  ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(certificates), "the certificate");
  return CheckPair(key.get(), certificate.get());
}

absl::Status CheckCertificate(const std::string& pem) { return ParseCertificate(pem).status(); }

}  // namespace starring
