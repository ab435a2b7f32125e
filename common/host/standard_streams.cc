#include "common/host/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <initializer_list>

namespace starring {

void OpenStandardStreams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one, because those below it are open. Not O_CLOEXEC: children need them too.
    if (open("/dev/null", O_RDWR) < 0) return;  // there is nowhere to say so
  }
}

}  // namespace starring
