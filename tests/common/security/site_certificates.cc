#include "tests/common/security/site_certificates.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "common/base/check.h"

namespace starring {
namespace {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

Key MakeKey() {
  Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  CHECK(key != nullptr);
  return key;
}

template <typename Write>
std::string Pem(Write write) {
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), BIO_free);
  CHECK_EQ(write(bio.get()), 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

void Extend(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  CHECK(extension != nullptr) << value;
  CHECK_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

// Not signed yet.
Certificate Fill(EVP_PKEY* key, const std::string& name, int days_valid) {
  static int serial = 1;  // an authority never gives two certificates the same number
  Certificate certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  // Two days ago, so that a certificate that expired yesterday was valid once.
  X509_time_adj_ex(X509_getm_notBefore(certificate.get()), -2, 0, nullptr);
  X509_time_adj_ex(X509_getm_notAfter(certificate.get()), days_valid, 0, nullptr);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key);
  return certificate;
}

}  // namespace

SiteCertificates::SiteCertificates() : key_(MakeKey()), certificate_(Fill(key_.get(), "site", 10)) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  Extend(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  CHECK_GT(X509_sign(certificate_.get(), key_.get(), EVP_sha256()), 0);
}

SiteCertificates::~SiteCertificates() = default;

std::string SiteCertificates::authority() const {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate_.get()); });
}

KeyAndCertificate SiteCertificates::Issue(const std::string& host, Validity validity) const {
  const Key key = MakeKey();
  const Certificate certificate = Fill(key.get(), host, validity.days_valid);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  in_addr address;
  Extend(certificate.get(), NID_subject_alt_name,
         (inet_pton(AF_INET, host.c_str(), &address) == 1 ? "IP:" : "DNS:") + host);
  CHECK_GT(X509_sign(certificate.get(), key_.get(), EVP_sha256()), 0);
  return {.private_key = Pem([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          }),
          .certificate = Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); })};
}

std::string Encrypted(const std::string& private_key, const std::string& passphrase) {
  const std::unique_ptr<BIO, int (*)(BIO*)> in(
      BIO_new_mem_buf(private_key.data(), static_cast<int>(private_key.size())), BIO_free);
  const Key key(PEM_read_bio_PrivateKey(in.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  CHECK(key != nullptr);
  return Pem([&](BIO* bio) {
    return PEM_write_bio_PrivateKey(bio, key.get(), EVP_aes_128_cbc(),
                                    reinterpret_cast<const unsigned char*>(passphrase.data()),
                                    static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
}

}  // namespace starring
