"""Replaces rules_cc: Bazel 4.2.3 loads these names for its own tools, and the native rules do the same."""

def cc_binary(**kwargs):
    native.cc_binary(**kwargs)

def cc_library(**kwargs):
    native.cc_library(**kwargs)

def cc_test(**kwargs):
    native.cc_test(**kwargs)

def cc_import(**kwargs):
    native.cc_import(**kwargs)

def cc_proto_library(**kwargs):
    native.cc_proto_library(**kwargs)

def cc_toolchain(**kwargs):
    native.cc_toolchain(**kwargs)

def cc_toolchain_suite(**kwargs):
    native.cc_toolchain_suite(**kwargs)

def cc_toolchain_alias(**kwargs):
    native.cc_toolchain_alias(**kwargs)

def cc_host_toolchain_alias(**kwargs):
    native.cc_host_toolchain_alias(**kwargs)

def cc_flags_supplier(**kwargs):
    native.cc_flags_supplier(**kwargs)

def objc_library(**kwargs):
    native.objc_library(**kwargs)

def objc_import(**kwargs):
    native.objc_import(**kwargs)
