// How this process's machine is named.
//
// Thread safety: any thread may call any function.
#ifndef STARRING_COMMON_HOST_HOST_IDENTITY_H_
#define STARRING_COMMON_HOST_HOST_IDENTITY_H_

#include <string>

namespace starring {

// As the machine calls itself; "unknown" if the system does not tell.
std::string HostName();

// Differs from boot to boot and from machine to machine; empty if the system does not tell.
std::string BootId();

}  // namespace starring

#endif  // STARRING_COMMON_HOST_HOST_IDENTITY_H_
