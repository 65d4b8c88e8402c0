return unsent and {answer, unsent} or {answer}
