// Package jsontext reads and writes JSON text without building values: a Scanner that finds where values begin and
// end and what PostgreSQL could not store of them, and a writer of strings.
//
// What the Scanner passes without a fault or a flaw, PostgreSQL stores as jsonb with every digit, and what it does not
// pass, jsonb refuses, apart from the depth and the digits of a number, which are the caller's own limits. It never
// changes the text; Unescape and AppendString change only what they are given.
package jsontext
