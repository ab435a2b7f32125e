// A certificate authority such as a site may have, for tests.
#ifndef STARRING_TESTS_COMMON_SECURITY_SITE_CERTIFICATES_H_
#define STARRING_TESTS_COMMON_SECURITY_SITE_CERTIFICATES_H_

#include <memory>
#include <string>

#include "common/security/job_secret.h"

struct evp_pkey_st;
struct x509_st;

namespace starring {

class SiteCertificates {
 public:
  SiteCertificates();
  ~SiteCertificates();

  std::string authority() const;  // PEM

  struct Validity {
    int days_valid = 1;
  };
  // Signed by the authority, for the IP address or name `host`.
  KeyAndCertificate Issue(const std::string& host) const { return Issue(host, Validity()); }
  KeyAndCertificate Issue(const std::string& host, Validity validity) const;

 private:
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

// `private_key` (PEM), encrypted with `passphrase`.
std::string Encrypted(const std::string& private_key, const std::string& passphrase);

}  // namespace starring

#endif  // STARRING_TESTS_COMMON_SECURITY_SITE_CERTIFICATES_H_
