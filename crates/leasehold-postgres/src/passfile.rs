//! Finds a password in the file that PostgreSQL's own programs use.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::address::Host;

/// The password for this login, if the file has one. It is read at each login.
pub(crate) fn password(host: &Host, database: &str, user: &str) -> Option<String> {
    let path = match std::env::var_os("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".pgpass"),
    };
    let metadata = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    if metadata.permissions().mode() & 0o077 != 0 {
        let path = path.display();
        tracing::warn!(target: "leasehold", "other users can read {path}, so it is not used; chmod it to 0600");
        return None;
    }
    found(&std::fs::read_to_string(&path).ok()?, host, database, user)
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
