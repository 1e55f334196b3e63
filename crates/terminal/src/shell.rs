//! Lines that people paste into a shell.

/// How a shell finds this program: by its name if that leads here, otherwise by its path.
pub fn program() -> String {
    let Ok(own) = std::env::current_exe() else { return "stoker".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("stoker")).find(|file| file.is_file());
    let is_own = found
        .and_then(|file| file.canonicalize().ok())
        .is_some_and(|file| own.canonicalize().is_ok_and(|own| own == file));
    if is_own { "stoker".into() } else { quoted(&own.display().to_string()) }
}

/// A word that a shell takes as one.
pub fn quoted(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if text.bytes().all(is_plain) { text.into() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_paths_as_one_word() {
        for (path, word) in [("/a/b-c", "/a/b-c"), ("/a b", "'/a b'"), ("/it's", "'/it'\\''s'")] {
            assert_eq!(quoted(path), word);
        }
    }
}
