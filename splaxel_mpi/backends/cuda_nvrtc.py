"""NVRTC: the compiler that comes with CuPy. It needs no GPU."""

import importlib.util

from ..errors import UserError


def available():
    """Whether CuPy is installed and finds the library."""
    if importlib.util.find_spec("cupy") is None:
        return False
    try:
        version()
    except Exception:  # the library is missing, in as many ways as there are releases
        return False
    return True


def version():
    """(major, minor) of the library."""
    from cupy.cuda import nvrtc

    return nvrtc.getVersion()


def compile_text(text, name, arch, options, strict=False):
    """Machine code of a source, and what the compiler says of it: (bytes, str).

    CuPy's own call flushes subnormal numbers to zero, whatever its options, and so would round
    otherwise than nvcc and the host. text: the source; name: of its file, for messages; arch: such
    as "sm_90"; options: of nvcc as of NVRTC; strict: a warning is an error. Raises UserError when
    it does not compile.
    """
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, name, [], [])
    try:
        options = [f"-arch={arch}", "--ptxas-options=-v", *options]
        nvrtc.compileProgram(program, options)
        log = nvrtc.getProgramLog(program)
        if strict and "warning" in log:
            warning = next(line for line in log.splitlines() if "warning" in line)
            raise UserError(f"{name} does not compile for {arch}: {warning.strip()}")
        return nvrtc.getCUBIN(program), log
    except nvrtc.NVRTCError as error:
        what = error_in(nvrtc.getProgramLog(program)) or str(error)
        raise UserError(f"{name} does not compile for {arch}: {what}") from None
    finally:
        nvrtc.destroyProgram(program)


def error_in(messages):
    """The first line of a compiler's messages that names an error, else the last."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[-1] if lines else "")
