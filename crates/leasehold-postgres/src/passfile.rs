//! Finds a password in the file that PostgreSQL's own programs use.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use leasehold_core::{Error, ErrorKind, Reason, escape};

use crate::address::Host;
use crate::classify::Fault;

/// The file, and whether other users can read it. Then it is not used.
fn file() -> Option<(PathBuf, bool)> {
    let path = match std::env::var_os("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"),
    };
    let metadata = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    Some((path, metadata.permissions().mode() & 0o077 != 0))
}

/// The password for this login, if the file has one. It is read at each login.
pub(crate) fn password(host: &Host, database: &str, user: &str) -> Option<String> {
    let (path, _) = file().filter(|(_, is_exposed)| !is_exposed)?;
    found(&std::fs::read_to_string(&path).ok()?, host, database, user)
}

/// The fault of a login without a password, if the file is why.
pub(crate) fn explained(fault: Fault) -> Fault {
    match file() {
        Some((path, true)) if fault.error.kind() == ErrorKind::Denied => {
            let path = path.to_string_lossy();
            let why = format!(
                "{}; {} is not used, since other users can read it: chmod it to 0600",
                fault.error,
                escape::terminal(&path)
            );
            Error::new(ErrorKind::Denied, why).with_reason(Reason::WrongPassword).into()
        }
        _ => fault,
    }
}

fn found(text: &str, host: &Host, database: &str, user: &str) -> Option<String> {
    let (host, port) = match host {
        Host::Tcp(host, port) => (host.clone(), port),
        Host::Unix(folder, port) => (folder.to_string_lossy().into_owned(), port),
    };
    // Sockets have this name as well.
    let is_host = |name: &str| name == host || (name == "localhost" && host.starts_with('/'));
    let port = port.to_string();
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let [of_host, of_port, of_database, of_user, password] = fields(line)?;
        let fits = |field: &str, value: &str| field == "*" || field == value;
        let is_here = (of_host == "*" || is_host(&of_host)) && fits(&of_port, &port);
        (is_here && fits(&of_database, database) && fits(&of_user, user)).then_some(password)
    })
}

/// The fields of a line, which colons separate. A backslash keeps the next character from doing so.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(characters.next()),
            other => fields.last_mut()?.push(other),
        }
    }
    fields.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# a comment\nno line\ndb:5432:shop:app:one\ndb:*:*:app:t\\:w:o\\\\\n\
                    localhost:*:*:*:socket\n*:*:*:*:any\n";
        let of = |host: Host, database| found(text, &host, database, "app").unwrap();
        let db = |port| Host::Tcp("db".to_owned(), port);
        assert_eq!(of(db(5432), "shop"), "one");
        assert_eq!(of(db(5433), "shop"), "t:w:o\\");
        assert_eq!(of(Host::Unix("/run".into(), 5432), "shop"), "socket");
        assert_eq!(of(Host::Tcp("other".to_owned(), 1), "x"), "any");
        assert_eq!(found("db:5432:shop:other:one", &db(5432), "shop", "app"), None);
    }
}
