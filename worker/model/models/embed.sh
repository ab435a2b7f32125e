#!/bin/sh
# Prints a C++ source that holds the text of every layer file given: embed.sh FILE...
set -eu
echo '#include "worker/model/layer_file.h"'
echo 'namespace starring {'
echo 'std::span<const ShippedModel> ShippedModels() {'
echo '  static constexpr ShippedModel kModels[] = {'
for file in "$@"; do
  name=$(basename "$file" .textproto)
  printf '{"%s", R"layer_file(' "$name"
  cat "$file"
  echo ')layer_file"},'
done
echo '  };'
echo '  return kModels;'
echo '}'
echo '}  // namespace starring'
