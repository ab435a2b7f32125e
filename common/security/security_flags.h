// The flags --job_secret, --tls, --tls_ca, --tls_certificate and --tls_key, which are the same for worker, server and
// launcher.
#ifndef STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_
#define STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_

#include <string>
#include <vector>

#include "common/flags/flag_table.h"
#include "common/security/transport_security.h"

namespace starring {

// For the table of flags of each program.
inline constexpr FlagRow kSecurityRows[] = {
    {"job_secret", "security", Text("file")}, {"tls", "security", Switch()},
    {"tls_ca", "security", Text("file")},     {"tls_certificate", "security", Text("file")},
    {"tls_key", "security", Text("file")},
};

// Their values. Call after the command line was read.
SecurityFiles SecurityFlags();

// The words of a command line that give a process the same values.
std::vector<std::string> SecurityFlagWords(const SecurityFiles& files);

}  // namespace starring

#endif  // STARRING_COMMON_SECURITY_SECURITY_FLAGS_H_
