// Tables whose rows are put in order by a click on a heading.
for (const table of document.querySelectorAll('table.sortable')) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector('button');
    button.addEventListener('click', () => sortBy(table, headings, column));
    button.disabled = false;
  });
}

function sortBy(table, headings, column) {
  const heading = headings[column];
  const first = column === 0 || 'lower' in heading.dataset ? 'ascending' : 'descending';
  const other = first === 'ascending' ? 'descending' : 'ascending';
  const order = heading.getAttribute('aria-sort') === first ? other : first;
  headings.forEach((one) => one.setAttribute('aria-sort', one === heading ? order : 'none'));
  const sign = order === 'ascending' ? 1 : -1;
  const value = (row) => row.cells[column].dataset.value;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === '' || y === '') return (x === '') - (y === '');
    return sign * (column === 0 ? x.localeCompare(y) : Number(x) - Number(y));
  });
  table.tBodies[0].append(...rows);
  const name = heading.querySelector('button').firstChild.textContent;
  byId('said').textContent = `sorted by ${name}, ${order}`;
}
