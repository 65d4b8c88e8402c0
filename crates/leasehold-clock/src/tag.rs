//! A tag that distinguishes a process from others that have, or had, its number.

use crate::Process;

/// Letters and digits that people don't confuse.
const SIGNS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// How many of them are letters: a tag begins with one, so that it is not a number.
const LETTERS: u64 = 24;

impl Process {
    /// Four signs of the [`digest`](Self::digest) of the process that has this number, such as
    /// `x7kq`. Another process with the same number, later or in another container, has the same
    /// signs with a chance of one in 786 432.
    ///
    /// ```
    /// # use leasehold_clock::Process;
    /// # if cfg!(target_os = "linux") {
    /// let own = std::process::id();
    /// assert!(Process::tag(own).is_some());
    /// # }
    /// assert_eq!(Process::tag(u32::MAX), None);
    /// ```
    #[must_use]
    pub fn tag(number: u32) -> Option<String> {
        Self::digest(number).map(signs_of)
    }

    /// A digest that identifies the process with this number in the caller's PID namespace, among
    /// all processes ever. It is made of the machine's boot, the namespace, the number, and the
    /// process's start. `None` if there is no such process, or if `/proc` belongs to another
    /// namespace; a process always finds its own.
    ///
    /// ```
    /// # use leasehold_clock::Process;
    /// let own = std::process::id();
    /// assert_eq!(Process::digest(own), Process::digest(own));
    /// assert_eq!(Process::digest(u32::MAX), None);
    /// ```
    #[must_use]
    pub fn digest(number: u32) -> Option<u64> {
        let is_own = number == std::process::id();
        let shown = std::fs::read_link("/proc/self").ok()?;
        // In another namespace's `/proc`, the processes have other numbers.
        if !is_own && shown.to_str() != Some(&std::process::id().to_string()) {
            return None;
        }
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let place = if is_own { "self".to_owned() } else { number.to_string() };
        let stat = std::fs::read_to_string(format!("/proc/{place}/stat")).ok()?;
        // The program's name is in parentheses, and may contain some itself.
        let (_, behind_name) = stat.rsplit_once(") ")?;
        let began = behind_name.split(' ').nth(19)?;
        let parts: [&[u8]; 4] =
            [&boot, space.as_os_str().as_encoded_bytes(), &number.to_be_bytes(), began.as_bytes()];
        Some(digest_of(&parts.concat()))
    }

    /// Four signs like a [`tag`](Self::tag), made of these bytes, for a process for which the
    /// system has no facts.
    #[must_use]
    pub fn tag_from(bytes: &[u8]) -> String {
        signs_of(digest_of(bytes))
    }
}

fn digest_of(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // The last bytes have changed the low bits alone.
    hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

fn signs_of(mut hash: u64) -> String {
    let mut text = String::new();
    for signs in [LETTERS, 32, 32, 32] {
        let sign = usize::try_from(hash % signs).unwrap_or_default();
        text.push(SIGNS.get(sign).copied().unwrap_or(b'a').into());
        hash /= signs;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_and_each_begin_has_a_tag_of_its_own() {
        let of = |n: u32| [b"boot".as_slice(), &n.to_be_bytes()].concat();
        let tags = (0..2_000).map(|n| Process::tag_from(&of(n)));
        let tags: std::collections::BTreeSet<_> = tags.collect();
        // Of 786 432.
        assert!(tags.len() > 1_980, "{}", tags.len());
        for tag in tags {
            assert!(tag.len() == 4 && tag.starts_with(|c: char| c.is_ascii_lowercase()), "{tag}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_process_of_this_moment_has_another_tag() {
        let own = Process::tag(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Process::tag(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(own, other);
        assert_eq!(Process::tag(child.id()), None);
    }
}
