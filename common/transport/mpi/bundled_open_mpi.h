// Open MPI as a part of a bundle (//deploy:bundle). Open MPI looks for its plugins, helper programs and texts where it
// was installed, unless environment variables say where they are now.
#ifndef STARRING_COMMON_TRANSPORT_MPI_BUNDLED_OPEN_MPI_H_
#define STARRING_COMMON_TRANSPORT_MPI_BUNDLED_OPEN_MPI_H_

#include <string>

namespace starring {

// The folder that the bundle was unpacked into, if this program runs from one: the folder above the program's own, when
// it contains Open MPI's configuration. Else empty.
[[nodiscard]] std::string BundleFolder();

// Tells Open MPI, in this process and those that it starts, to take everything from the bundle in `folder` and nothing
// from elsewhere. Overrides the user's variables: an environment for another Open MPI would mix the two. Changes the
// environment, which no other thread may read meanwhile.
// REQUIRES: `folder` came from BundleFolder and is not empty.
void UseBundledOpenMpi(const std::string& folder);

}  // namespace starring

#endif  // STARRING_COMMON_TRANSPORT_MPI_BUNDLED_OPEN_MPI_H_
