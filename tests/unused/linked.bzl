"""Lists what programs are linked from: a file with every C++ library of this repository that they reach.

    linked_libraries(
        name = "libraries",
        programs = ["//server"],
    )

Each line is a label, a space, and the path of the library's archive in the runfiles, or "-" if it has no sources.
"""

_Reached = provider(fields = ["lines", "archives"])

def _reach_impl(target, ctx):
    lines = []
    archives = []
    if ctx.rule.kind == "cc_library" and not target.label.workspace_name:
        archive = None
        for linked in target[CcInfo].linking_context.linker_inputs.to_list():
            if linked.owner == target.label:
                for library in linked.libraries:
                    archive = library.static_library or library.pic_static_library or archive
        if archive != None:
            archives.append(archive)
        lines.append("%s %s" % (target.label, archive.short_path if archive != None else "-"))
    reached = [dep[_Reached] for dep in getattr(ctx.rule.attr, "deps", []) if _Reached in dep]
    return [_Reached(
        lines = depset(lines, transitive = [one.lines for one in reached]),
        archives = depset(archives, transitive = [one.archives for one in reached]),
    )]

_reach = aspect(implementation = _reach_impl, attr_aspects = ["deps"])

def _linked_libraries_impl(ctx):
    reached = [program[_Reached] for program in ctx.attr.programs]
    lines = depset(transitive = [one.lines for one in reached])
    out = ctx.actions.declare_file(ctx.label.name + ".txt")
    ctx.actions.write(out, "".join([line + "\n" for line in lines.to_list()]))
    archives = depset(transitive = [one.archives for one in reached])
    return [DefaultInfo(files = depset([out]), runfiles = ctx.runfiles(files = [out], transitive_files = archives))]

linked_libraries = rule(
    implementation = _linked_libraries_impl,
    attrs = {"programs": attr.label_list(aspects = [_reach])},
)
