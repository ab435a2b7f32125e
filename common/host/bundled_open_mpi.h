// Open MPI as a part of a bundle (//deploy:bundle). It looks for its plugins, helper programs and texts where it was
// installed, unless variables of the environment say that it moved.
#ifndef STARRING_COMMON_HOST_BUNDLED_OPEN_MPI_H_
#define STARRING_COMMON_HOST_BUNDLED_OPEN_MPI_H_

#include <string>

namespace starring {

// The folder that the bundle was unpacked into, if this program runs from one: the folder above the program's own, when
// Open MPI's configuration lies in it. Else empty.
std::string BundleFolder();

// Tells Open MPI, in this process and those that it starts, to take what it needs from the bundle in `folder` and
// nothing from elsewhere. Overrides what the user has set: an environment for another Open MPI would mix the two.
// Changes the environment: no other thread may read it meanwhile.
// REQUIRES: `folder` came from BundleFolder and is not empty.
void UseBundledOpenMpi(const std::string& folder);

}  // namespace starring

#endif  // STARRING_COMMON_HOST_BUNDLED_OPEN_MPI_H_
