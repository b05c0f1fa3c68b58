//! Names of the system calls that may concern a pool, for messages to users.

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of a system call of this machine's architecture.
        pub fn name(number: u64) -> Option<&'static str> {
            const NAMES: &[(libc::c_long, &str)] = &[$((libc::$name, stringify!($name))),*];
            let found = NAMES.iter().find(|(nr, _)| *nr as u64 == number);
            found.map(|(_, name)| &name["SYS_".len()..])
        }
    };
}

names! {
    SYS_read SYS_write SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_preadv SYS_pwritev
    SYS_preadv2 SYS_pwritev2 SYS_lseek SYS_close SYS_open SYS_creat SYS_openat SYS_openat2 SYS_stat
    SYS_lstat SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs SYS_getdents SYS_getdents64
    SYS_access SYS_faccessat SYS_faccessat2 SYS_chdir SYS_fchdir SYS_mkdir SYS_mkdirat SYS_mknod
    SYS_mknodat SYS_rmdir SYS_unlink SYS_unlinkat SYS_rename SYS_renameat SYS_renameat2 SYS_link
    SYS_linkat SYS_symlink SYS_symlinkat SYS_readlink SYS_readlinkat SYS_chmod SYS_fchmod
    SYS_fchmodat SYS_chown SYS_fchown SYS_lchown SYS_fchownat SYS_utime SYS_utimes SYS_futimesat
    SYS_utimensat SYS_truncate SYS_ftruncate SYS_fallocate SYS_getxattr SYS_lgetxattr SYS_fgetxattr
    SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr
    SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_fsync SYS_fdatasync SYS_sync_file_range
    SYS_syncfs SYS_flock SYS_fcntl SYS_ioctl SYS_dup SYS_dup2 SYS_dup3 SYS_sendfile
    SYS_copy_file_range SYS_splice SYS_mmap SYS_msync SYS_readahead SYS_fadvise64
}

#[cfg(test)]
mod tests {
    #[test]
    fn calls_have_names() {
        assert_eq!(super::name(libc::SYS_openat as u64), Some("openat"));
        assert_eq!(super::name(99_999), None);
    }
}
