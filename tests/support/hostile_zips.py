"""Malicious and damaged zips.

Most are copies of a valid zip with all members and one fault.
"""

import stat
import struct
import zipfile
import zlib

BLOCK = bytes(1 << 20)


def copied(source, target, *, skip=(), extra=()):
    """Copy a zip without the names that end with `skip`, and add `extra` (ZipInfo, bytes)."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            if not info.filename.endswith(tuple(skip)):
                new.writestr(info, old.read(info))
        for info, content in extra:
            new.writestr(info, content)
    return target


def member_with_exact_name(name):
    """A member with exactly this name: ZipInfo's constructor would normalize some names."""
    info = zipfile.ZipInfo("x")
    info.filename = info.orig_filename = name
    return info


def link(name):
    """A member that unzip extracts as a symbolic link. Its content is the target."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def with_flags(source, target, *, offset, value):
    """Copy a zip and set two bytes in every entry of its central directory."""
    content = bytearray(source.read_bytes())
    start = -1
    while (start := content.find(b"PK\x01\x02", start + 1)) >= 0:
        content[start + offset : start + offset + 2] = struct.pack("<H", value)
    target.write_bytes(content)
    return target


def encrypted(source, target):
    """Copy a zip and mark all members as encrypted in the central directory."""
    return with_flags(source, target, offset=8, value=1)


def understating(target, member, megabytes, *, declared):
    """Write a zip with one member of zeros whose stated size differs from its real size."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, bytes(megabytes * len(BLOCK)))
        archive.getinfo(member).file_size = declared  # the central directory is written on closing
    return target


def with_bomb(source, target, member, megabytes, *, declared=None):
    """Copy a zip, and replace one member by zeros that inflate to that many megabytes.

    `declared` is the size that the zip states, if it differs. Writing is fast: after a full flush,
    every deflated block of zeros is the same few bytes.
    """
    copied(source, target, skip=[member])
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    first, rest = (deflate.compress(BLOCK) + deflate.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + rest * (megabytes - 1) + deflate.flush()
    with zipfile.ZipFile(target, "a") as archive:
        folder = archive.namelist()[0].split("/")[0]
        info = zipfile.ZipInfo(f"{folder}/{member}")
        info.compress_type = zipfile.ZIP_DEFLATED
        info.file_size = megabytes * len(BLOCK) if declared is None else declared
        info.compress_size, info.CRC = len(data), 0  # the checksum is never reached
        info.header_offset = archive.start_dir
        archive.fp.seek(archive.start_dir)
        archive.fp.write(info.FileHeader(zip64=True) + data)
        archive.start_dir = archive.fp.tell()
        archive.filelist.append(info)
        archive._didModify = True  # so that closing writes the central directory
    return target
