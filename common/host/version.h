// Version of Starring, for --version and the run record.
#ifndef STARRING_COMMON_HOST_VERSION_H_
#define STARRING_COMMON_HOST_VERSION_H_

namespace starring {

inline constexpr char kStarringVersion[] = "0.1";

}  // namespace starring

#endif  // STARRING_COMMON_HOST_VERSION_H_
