#!/usr/bin/python3
"""check.py BUILD_DIR - proves that the direction of dependencies is enforced by the build.

For every folder it takes the compile command of one of its own sources and preprocesses a file that includes a header of
every other folder: allowed includes must be found, forbidden ones must not.
"""
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile

# folder -> folders it may include (docs/architecture.md)
ALLOWED = {
    'messages': set(),
    'crd': {'messages'},
    'hostio': {'messages'},
    'actors/runtime': {'messages'},
    'actors/agent': {'messages', 'hostio', 'actors/runtime'},
    'actors/controller': {'messages', 'crd', 'actors/runtime'},
    'actors/node': {'messages', 'hostio', 'actors/runtime'},
    'csi': {'messages'},
}


def any_header(root, folder):
    """A header of `folder` that stands directly in it."""
    headers = sorted((root / folder).glob('*.hpp'))
    return f'{folder}/{headers[0].name}' if headers else None


def command_of(commands, root, folder):
    """The compile command of a source that stands directly in `folder`, as (argv, directory)."""
    for entry in commands:
        source = (pathlib.Path(entry['directory']) / entry['file']).resolve()
        if source.parent == root / folder and entry['file'].endswith('.cpp'):
            return shlex.split(entry['command']), entry['directory'], entry['file']
    return None


def finds(argv, directory, source, header):
    """True when `header` is found by that command."""
    with tempfile.NamedTemporaryFile('w', suffix='.cpp') as probe:
        probe.write(f'#if __has_include("{header}")\n#else\n#error not found\n#endif\n')
        probe.flush()
        kept, skip = [], False
        for word in argv:
            if skip or word in (source, '-c', '-MD', '-MP'):
                skip = False
            elif word in ('-o', '-MQ', '-MF'):
                skip = True
            else:
                kept.append(word)
        run = subprocess.run(kept + ['-E', '-o', '/dev/null', probe.name], cwd=directory, capture_output=True, text=True)
    if run.returncode != 0 and 'not found' not in run.stderr:
        sys.exit(f'the compiler failed for another reason:\n{run.stderr}')
    return run.returncode == 0


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(__file__).resolve().parents[2]
    commands = json.loads((build / 'compile_commands.json').read_text())
    wrong, checked = [], 0
    for folder, allowed in ALLOWED.items():
        command = command_of(commands, root, folder)
        if command is None:
            sys.exit(f'no source of {folder} in {build}/compile_commands.json')
        for other in ALLOWED:
            header = any_header(root, other)
            expected = other == folder or other in allowed
            checked += 1
            if finds(*command, header) != expected:
                wrong.append(f'{folder} {"cannot" if expected else "can"} include {header}')
    print('\n'.join(wrong) or f'{checked} pairs of folders: every include in the right direction, none in the wrong one')
    sys.exit(1 if wrong else 0)


if __name__ == '__main__':
    main()
