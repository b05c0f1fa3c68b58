//! Exports the replacements of libc's functions, so that dlsym(3) finds them, too.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=clock_gettime");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=syscall");
    println!("cargo:rerun-if-changed=build.rs");
}
